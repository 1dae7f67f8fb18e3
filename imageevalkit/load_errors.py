"""Why a local model folder or a Hugging Face repository does not load, in one line with what to do."""

from __future__ import annotations

from pathlib import Path


def why_not_loaded(model_path: str, error: BaseException) -> str:
    """Words for ``error``, which transformers, diffusers or huggingface_hub raised while loading ``model_path``."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    causes = _chain(error)

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if Path(model_path).is_dir():
        return f"{model_path} does not load: {first_line(error)}"
    if not may_be_hub_id(model_path):
        return f"there is no folder {model_path}; download the model or correct its path"
    if caused_by(GatedRepoError):
        # set or not: a model that runs code of its authors does not have it
        return (
            f"{model_path} is gated: accept its licence on the hub, set HF_TOKEN and run "
            "bash utils/prefetch.sh with the options of this run"
        )
    if caused_by(RepositoryNotFoundError):
        return f"{model_path} is neither a local folder nor a hub repository that HF_TOKEN may read"
    if caused_by(RevisionNotFoundError):
        return f"{model_path} has no such revision on the hub"
    if caused_by(LocalEntryNotFoundError, OfflineModeIsEnabled):
        reason = (
            "HF_HUB_OFFLINE=1 forbids downloading" if constants.HF_HUB_OFFLINE else "the hub is unreachable"
        )
        return (
            f"{model_path} is no local folder and not whole in the cache {constants.HF_HUB_CACHE}, "
            f"and {reason}; with internet, bash utils/prefetch.sh with the options of this run fetches it"
        )
    return f"{model_path} does not load: {first_line(error)}"


def may_be_hub_id(model_path: str) -> bool:
    """``owner/name``, as opposed to what can only be a path."""
    parts = model_path.split("/")
    return len(parts) == 2 and all(part and not part.startswith((".", "~")) for part in parts)


def first_line(error: BaseException) -> str:
    """The class of ``error`` and the first line of its text; where that only points to its cause, the cause's."""
    lines = str(error).strip().splitlines()
    # transformers and diffusers import lazily, and wrap what an import raised
    if lines and "look up to see its traceback" in lines[0]:
        *_, cause = _chain(error)
        if cause is not error:
            return first_line(cause)
        lines = [" ".join(lines)]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _chain(error: BaseException | None) -> list[BaseException]:
    causes = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes

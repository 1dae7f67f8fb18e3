"""Where a judge behind an API is reached."""

from __future__ import annotations

from eval_models.judge.api.settings import ApiSettings
from eval_models.judge.options import JudgeOptions
from eval_models.judge.served import wait_for_address
from imageevalkit.api.endpoint import Endpoint
from imageevalkit.errors import CellFailure, UserError


def endpoint_of(backend: str, settings: ApiSettings, options: JudgeOptions) -> Endpoint:
    """The endpoint of a judge: what ``base_url`` names, else the server of this run, else the user's API.

    A server of this run starts when it is first asked for: that may take many minutes.

    Raises:
        CellFailure: there is none, or it has no key.
        JudgeUnusable: the server of this run does not start.
    """
    given = {"base_url": settings.base_url, "api_key_env": settings.api_key_env}
    try:
        if backend != "vllm":
            return Endpoint.of(given)
        if not settings.base_url:
            address = _address(options)
            return Endpoint.without_key(address, f"the judge's address file {options.address_file}")
        # the key of the user's API is no business of a server that is named here
        return (
            Endpoint.of(given)
            if settings.api_key_env
            else Endpoint.without_key(settings.base_url, "base_url")
        )
    except UserError as error:
        raise CellFailure(f"the judge cannot be asked: {error}") from None


def _address(options: JudgeOptions) -> str:
    if not options.address_file:
        raise CellFailure(
            "no server of the judge is known: give its URL as the judge's kwarg base_url, or let eval.sh start one"
        )
    return wait_for_address(options.address_file)

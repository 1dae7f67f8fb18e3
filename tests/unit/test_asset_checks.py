"""Looks at assets from files alone: what is missing, short or altered is told, and what cannot be known is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imageevalkit.assets import FileFacts, Finding, HubAsset
from imageevalkit.assets.check import check_asset
from imageevalkit.assets.hub import check_room, snapshot
from imageevalkit.common.errors import CellFailure
from tests.support.hub_server import COMMIT, HubServer, hub_server

# a safetensors file of one tensor of two bytes
HEADER = json.dumps({"t": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
SHARD = len(HEADER).to_bytes(8, "little") + HEADER + b"ab"
FILES = {
    "model_index.json": b'{"_class_name": "P", "unet": ["diffusers", "U"], "checker": [null, null]}',
    "unet/config.json": b"{}",
    "unet/model-1.safetensors": SHARD,
    "unet/model.safetensors.index.json": b'{"weight_map": {"t": "model-1.safetensors"}}',
    "readme.md": b"not wanted",
}
ASSET = HubAsset("org/tiny", COMMIT, "model", ("*.json", "*.safetensors"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The still absent folder of the repository in a cache of its own."""
    from huggingface_hub import constants

    folder = tmp_path / "home" / "hub"
    monkeypatch.setenv("HF_HOME", str(folder.parent))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return folder / "models--org--tiny"


def fetch(
    monkeypatch: pytest.MonkeyPatch, asset: HubAsset = ASSET, hashes: bool = False, content_network: str = ""
) -> HubServer:
    """Returns a server in place of the hub, with its requests."""
    from huggingface_hub import constants

    with hub_server(FILES) as server:
        server.content_network = content_network
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        snapshot(asset, hashes=hashes)
        return server


def as_copied_with_links_resolved(cache: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache as ``cp -rL`` leaves it, without the blobs that nothing points to any more."""
    shutil.copytree(cache, target / cache.name)
    shutil.rmtree(target / cache.name / "blobs")
    monkeypatch.setenv("HF_HUB_CACHE", str(target))
    return target / cache.name


def test_fetched_files_are_whole_and_stay_so_in_a_copy(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_asset(ASSET, hashes=False).problems == [
        f"org/tiny at {COMMIT[:7]} is not in the cache {cache.parent}"
    ]
    fetch(monkeypatch)
    assert check_asset(ASSET, hashes=True) == Finding([], [])
    folder = as_copied_with_links_resolved(cache, tmp_path / "copy", monkeypatch) / "snapshots" / COMMIT
    assert not (folder / "model_index.json").is_symlink()
    assert check_asset(ASSET, hashes=True) == Finding([], [])

    (folder / "unet/config.json").unlink()
    (folder / "unet/model-1.safetensors").write_bytes(SHARD[:-1])
    (folder / "model_index.json").write_bytes(FILES["model_index.json"].replace(b"P", b"Q"))
    (by_size,) = check_asset(ASSET, hashes=False).problems
    size = len(SHARD)
    assert "1 file is missing (unet/config.json)" in by_size
    assert f"unet/model-1.safetensors has {size - 1} bytes instead of {size}" in by_size
    assert "model_index.json" not in by_size
    (by_content,) = check_asset(ASSET, hashes=True).problems
    assert "model_index.json has other content" in by_content


def test_short_and_altered_files_are_fetched_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(monkeypatch)
    folder = cache / "snapshots" / COMMIT
    (folder / "unet/config.json").resolve().write_bytes(b"")
    assert len(fetch(monkeypatch).downloads()) == 1
    assert (folder / "unet/config.json").read_bytes() == b"{}"
    assert not fetch(monkeypatch).downloads()

    (folder / "unet/config.json").resolve().write_bytes(b"[]")
    assert not fetch(monkeypatch).downloads(), "of the right size, and nobody asked for hashes"
    fetch(monkeypatch, hashes=True)
    assert (folder / "unet/config.json").read_bytes() == b"{}"


def test_large_files_come_from_the_content_network_without_the_token(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imageevalkit.assets.hub.LARGE", 1)
    monkeypatch.setenv("HF_TOKEN", "hf_nobodyshouldseethis")
    with hub_server(FILES) as network:
        asked = fetch(monkeypatch, content_network=network.url)
    (download,) = network.downloads()
    assert download.path.endswith("/unet/model-1.safetensors") and download.authorization is None
    assert all(seen.authorization for seen in asked.downloads())
    assert check_asset(ASSET, hashes=True) == Finding([], [])


def test_cache_that_others_have_filled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(monkeypatch)
    shutil.rmtree(cache / "imageevalkit")
    finding = check_asset(ASSET, hashes=True)
    assert finding.problems == []
    (note,) = finding.notes
    assert "was not fetched by prefetch" in note and "sizes and contents of 4 files" in note


def test_after_a_killed_download_what_is_short_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("imageevalkit.assets.hub._complete_large_files", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(monkeypatch)
    (problem,) = check_asset(ASSET, hashes=False).problems
    assert "4 files are missing" in problem and "unet/model-1.safetensors" in problem
    fetch(monkeypatch)
    assert check_asset(ASSET, hashes=True) == Finding([], [])


SD15_PATTERNS = (
    "model_index.json",
    "tokenizer/*",
    "*/config.json",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
)
SD15_PARTS = ("unet", "vae", "tokenizer", "safety_checker", "extra")
SD15_INDEX = json.dumps({part: ["library", "Class"] for part in SD15_PARTS}).encode()


@pytest.mark.parametrize(
    ("patterns", "files", "said"),
    [
        (
            SD15_PATTERNS,
            {"unet/config.json": b"{}", "vae/config.json": b"{}"},
            [
                "model_index.json is missing",
                "no weights for unet/config.json",
                "no weights for vae/config.json",
            ],
        ),
        (
            ("*.json", "ema.safetensors"),
            {"config.json": b"{}", "ae.safetensors": SHARD},
            ["ema.safetensors is missing"],
        ),
        # what is left out, and what has no weights, is not missed
        (
            SD15_PATTERNS,
            {
                "model_index.json": SD15_INDEX,
                "tokenizer/config.json": b"{}",
                "safety_checker/config.json": b"{}",
                "extra/config.json": b"{}",
                "unet/config.json": b"{}",
                "unet/diffusion_pytorch_model.safetensors": SHARD,
                "vae/config.json": b"{}",
                "vae/diffusion_pytorch_model.safetensors": SHARD,
            },
            [],
        ),
        # the root's weights are in its parts
        ((), {"config.json": b"{}", "llm/config.json": b"{}", "llm/w.bin": b"w"}, []),
    ],
)
def test_weights_that_are_not_there_are_missed_without_a_record(
    cache: Path, patterns: tuple[str, ...], files: dict[str, bytes], said: list[str]
) -> None:
    for name, data in files.items():
        (cache / "snapshots" / COMMIT / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / "snapshots" / COMMIT / name).write_bytes(data)
    found = check_asset(HubAsset("org/tiny", COMMIT, "model", patterns), hashes=True)
    assert len(found.problems) >= len(said) and all(any(s in p for p in found.problems) for s in said), found
    assert said or not found.problems
    assert not found.is_known, "nothing was hashed"


def test_room_is_counted_with_what_has_begun(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"w.safetensors": FileFacts(3 << 30, "a" * 64)}
    (cache / "blobs").mkdir(parents=True)
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr("imageevalkit.assets.hub.shutil.disk_usage", lambda _: usage._replace(free=2 << 30))
    part = cache / "blobs" / f"{'b' * 64}.resume"
    with part.open("wb") as file:
        file.truncate(2 << 30)
    with (cache / "blobs" / f"{'a' * 64}.0123abcd.incomplete").open("wb") as file:
        file.truncate(1 << 30)
    # neither the beginning of another file nor what the library does not go on with saves anything
    with pytest.raises(
        CellFailure, match=r"3\.2 GB are to be downloaded.*\*\.incomplete are 1\.1 GB that killed"
    ):
        check_room("org/tiny", cache / "blobs", wanted)
    part.rename(cache / "blobs" / f"{'a' * 64}.resume")
    check_room("org/tiny", cache / "blobs", wanted)

"""Files from any address and authors' repositories: fetched whole or not at all, resumed, and trusted only once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from imageevalkit.assets import CodeAsset, UrlAsset, http
from imageevalkit.assets.check import check_asset
from imageevalkit.assets.git import fetch_code
from imageevalkit.assets.http import fetch_file
from imageevalkit.common.errors import CellFailure
from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.support.waiting import LONGEST_WAIT, wait_for

PLACE = "eval_models/weights/w.pt"
CONTENT = bytes(range(256)) * 4000
TOKEN = "hf_nobodyshouldseethis"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the tree; waits between tries are short."""
    root = tmp_path / "kit"
    for module in ("git", "http"):
        monkeypatch.setattr(f"imageevalkit.assets.{module}.REPO", root)
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.02)
    return root


@pytest.fixture
def web() -> Iterator[HubServer]:
    with hub_server({"w.pt": CONTENT}) as server:
        yield server


def asset(server: HubServer, file: str = "w.pt", **fields: Any) -> UrlAsset:
    return UrlAsset(f"{server.url}/org/x/resolve/{COMMIT}/{file}", PLACE, "MIT", **fields)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def is_fine(wanted: UrlAsset | CodeAsset) -> bool:
    """Whether every byte is right, as far as anybody knows them, and there is nothing to remark."""
    found = check_asset(wanted, hashes=True)
    return not found.problems and not found.notes


def fetch(wanted: UrlAsset) -> list[str]:
    return list(fetch_file(wanted, "w", hashes=False, download_allowed=True).notes)


def test_a_pinned_file_arrives_through_cuts_and_busy_servers(web: HubServer, root: Path) -> None:
    wanted = asset(web, sha256=sha256(CONTENT), size=len(CONTENT))
    assert check_asset(wanted, hashes=False).problems == [f"{PLACE} is missing"]
    web.failures, web.failure_status = 2, 429
    web.cuts, web.cut_after = 2, 300_000
    assert fetch(wanted) == []
    assert (root / PLACE).read_bytes() == CONTENT
    assert files(root) == {PLACE, "eval_models/weights/.w.pt.fetched.json"}
    ranges = [seen.range for seen in web.downloads()]
    assert ranges == [None] * 3 + ["bytes=262144-", "bytes=524288-"], "whole chunks of 64 KiB are kept"
    assert fetch(wanted) == [] and len(web.downloads()) == 5, "what is whole is not fetched again"


def test_a_file_that_is_not_the_pinned_one_is_refused(web: HubServer, root: Path) -> None:
    for wrong in ({"sha256": sha256(b"other")}, {"size": 7}, {"sha256_start": sha256(b"other")[:8]}):
        with pytest.raises(CellFailure, match="has another file than pinned"):
            fetch(asset(web, **wrong))
    assert files(root) == set()


def test_of_a_hash_its_first_digits_may_be_all_that_is_published(web: HubServer, root: Path) -> None:
    wanted = asset(web, sha256_start=sha256(CONTENT)[:8])
    (note,) = fetch(wanted)
    assert "published are only the first 8 digits of its hash" in note
    assert is_fine(wanted)
    (root / PLACE).with_name(".w.pt.fetched.json").unlink()
    (root / PLACE).write_bytes(b"other")
    with pytest.raises(CellFailure, match="has other content than"):
        fetch(wanted)


def test_what_nobody_has_published_is_trusted_once(web: HubServer, root: Path) -> None:
    wanted = asset(web)
    (note,) = fetch(wanted)
    assert "nobody has published its hash" in note and sha256(CONTENT) in note
    assert is_fine(wanted)
    altered = bytes([1]) + CONTENT[1:]
    (root / PLACE).write_bytes(altered)
    assert check_asset(wanted, hashes=False).problems == []
    assert "other content" in check_asset(wanted, hashes=True).problems[0]
    # the file is lost, and the address gives another one now
    (root / PLACE).unlink()
    web.files["w.pt"] = altered
    with pytest.raises(CellFailure, match=r"than at the first download; delete .*\.w\.pt\.fetched\.json"):
        fetch(wanted)
    web.files["w.pt"] = CONTENT
    fetch(wanted)
    assert (root / PLACE).read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "tries"), [(403, 1), (503, http.TRIES)])
def test_a_server_that_refuses_is_one_line(web: HubServer, root: Path, status: int, tries: int) -> None:
    web.failures, web.failure_status = 99, status
    with pytest.raises(CellFailure, match=f"answers {status}") as caught:
        fetch(asset(web))
    assert "\n" not in str(caught.value) and ("HF_TOKEN" in str(caught.value)) == (status == 403)
    assert len(web.downloads()) == tries


def test_the_hub_is_asked_through_its_mirror_with_the_token_and_others_without(
    web: HubServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], root: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch(asset(web))
    assert web.downloads()[0].authorization is None
    monkeypatch.setenv("HF_ENDPOINT", f"{web.url}/")
    fetch(UrlAsset(f"https://huggingface.co/org/x/resolve/{COMMIT}/w.pt", "eval_models/weights/v.pt", "MIT"))
    assert web.downloads()[1].authorization == f"Bearer {TOKEN}"
    assert TOKEN not in "".join(capfd.readouterr())
    assert not any(TOKEN.encode() in p.read_bytes() for p in root.rglob("*") if p.is_file())


def test_killed_download_goes_on_where_it_stopped(web: HubServer, root: Path) -> None:
    web.stalls, web.cut_after = 1, 700_000
    part = root / "eval_models/weights/.w.pt.part"
    code = "import sys, pathlib; from imageevalkit.assets.http import download\n"
    code += "with download(sys.argv[1], pathlib.Path(sys.argv[2]), 'w'): pass"
    environ = {**os.environ, "PYTHONPATH": str(Path(http.__file__).parents[2])}
    killed = subprocess.Popen([sys.executable, "-c", code, asset(web).url, str(part)], env=environ)
    try:
        wait_for(lambda: part.exists() and part.stat().st_size > 600_000)
        killed.kill()
    finally:
        killed.wait(LONGEST_WAIT)
        web.go_on.set()
    begun = part.stat().st_size
    fetch(asset(web))
    assert (root / PLACE).read_bytes() == CONTENT
    assert web.downloads()[-1].range == f"bytes={begun}-"


def test_the_password_of_a_mirror_is_not_told(
    web: HubServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", web.url.replace("://", "://me:pass@word@"))
    wanted = UrlAsset(f"https://huggingface.co/org/x/resolve/{COMMIT}/w.pt", PLACE, "MIT")
    web.failures, web.failure_status = 99, 503
    with pytest.raises(CellFailure) as caught:
        fetch(wanted)
    said = str(caught.value) + "".join(capfd.readouterr())
    assert f"{web.url}/org/x/resolve/{COMMIT}/w.pt answers 503" in said
    assert "word" not in said and "me:" not in said


@pytest.fixture
def full_disk(root: Path) -> Iterator[None]:
    """The tree is on a disk with room for 200 kB."""
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(root)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield
    subprocess.run(["umount", str(root)], check=True)


def test_a_full_disk_is_one_line_and_keeps_what_has_come(web: HubServer, root: Path, full_disk: None) -> None:
    with pytest.raises(CellFailure, match=r"^disk full: cannot write .*w\.pt.* run the same command again$"):
        fetch(asset(web))
    assert not (root / PLACE).exists() and (root / "eval_models/weights/.w.pt.part").stat().st_size > 100_000


# --- archives ---

MEMBERS = {"a.pth": b"weights", "lora/config.json": b"{}", "extra.txt": b"x"}


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("lora/", b"")
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def archive_asset(server: HubServer, content: bytes) -> UrlAsset:
    server.files["all.zip"] = content
    url = f"{server.url}/org/x/resolve/{COMMIT}/all.zip"
    return UrlAsset(url, "eval_models/weights/ds", "MIT", unpack=("a.pth", "lora/config.json"))


def test_an_archive_is_unpacked_and_every_file_of_it_known(web: HubServer, root: Path) -> None:
    wanted = archive_asset(web, zipped(MEMBERS))
    assert "2 files are missing (a.pth, lora/config.json)" in check_asset(wanted, hashes=False).problems[0]
    assert "nobody has published" in fetch(wanted)[0]
    folder = root / "eval_models/weights/ds"
    assert files(folder) == {*MEMBERS, ".all.zip.fetched.json"}
    assert is_fine(wanted)
    (folder / "extra.txt").unlink()
    (folder / "a.pth").write_bytes(b"Weights")
    assert check_asset(wanted, hashes=False).problems == [
        "eval_models/weights/ds: 1 file is missing (extra.txt)"
    ]
    assert "a.pth has other content" in check_asset(wanted, hashes=True).problems[0]
    fetch(wanted)
    assert is_fine(wanted)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (zipped({**MEMBERS, "../escape": b"x"}), "would leave the folder"),
        (b"<html>not found</html>", "is no ZIP file"),
    ],
)
def test_a_bad_archive_leaves_nothing(web: HubServer, root: Path, content: bytes, said: str) -> None:
    with pytest.raises(CellFailure, match=said):
        fetch(archive_asset(web, content))
    assert not any("part" not in name for name in files(root))


# --- authors' code ---


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """An author's git repository of one commit, with an executable and a link."""
    folder = tmp_path / "upstream"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "net.py").write_text("class Net: ...\n")
    (folder / "run.sh").write_text("exit\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "models" / "__pycache__").mkdir()
    (folder / "models" / "__pycache__" / "net.pyc").write_text("some authors have these in their repository")
    (folder / "latest").symlink_to("models/")
    (folder / "models" / "again").symlink_to("../latest/net.py")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return folder


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def code_asset(upstream: Path) -> CodeAsset:
    commit, tree = git(upstream, "rev-parse", "HEAD"), git(upstream, "rev-parse", "HEAD^{tree}")
    return CodeAsset("owner/name", commit, tree, "infer/custom_models/code/net", "MIT")


def publish(upstream: Path, server: Path) -> None:
    """Put the repository where that of ``owner/name`` is looked for."""
    shutil.rmtree(server / "owner/name", ignore_errors=True)
    git(upstream, "clone", "-q", "--bare", str(upstream), str(server / "owner/name"))


def fetch_from(server: Path, wanted: CodeAsset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imageevalkit.assets.git.GITHUB", f"file://{server}")
    assert not fetch_code(wanted, "net", None).problems


def test_a_repository_is_verified_by_git_s_own_hash(
    upstream: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = code_asset(upstream)
    assert "is missing" in check_asset(wanted, hashes=False).problems[0]
    publish(upstream, tmp_path / "web")
    fetch_from(tmp_path / "web", wanted, monkeypatch)
    folder = root / wanted.path
    assert files(folder) >= {"models/net.py", "models/__pycache__/net.pyc", "run.sh", ".imageevalkit.json"}
    assert (folder / "latest").is_symlink() and os.access(folder / "run.sh", os.X_OK)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["net"]

    # what running it leaves is no problem
    (folder / "models" / "__pycache__" / "net.cpython-312.pyc").write_bytes(b"x")
    (folder / "result.txt").touch()
    assert is_fine(wanted)
    (folder / "run.sh").write_text("quit\n")
    (folder / "models" / "net.py").unlink()
    (folder / "latest").unlink()
    problem, link = check_asset(wanted, hashes=True).problems
    assert "1 file is missing (models/net.py)" in problem and "run.sh has other content" in problem
    assert "the link latest is missing" in link
    fetch_from(tmp_path / "web", wanted, monkeypatch)
    assert is_fine(wanted)


def test_a_mirror_and_a_clone_are_as_good(upstream: Path, root: Path, tmp_path: Path) -> None:
    wanted = code_asset(upstream)
    mirror = tmp_path / "mirror"
    with pytest.raises(CellFailure, match="there is no folder"):
        fetch_code(wanted, "net", mirror)
    (mirror / wanted.source).parent.mkdir(parents=True)
    (mirror / wanted.source).symlink_to(upstream)
    fetch_code(wanted, "net", mirror)
    assert is_fine(wanted)
    subprocess.run(["rm", "-r", root / wanted.path], check=True)
    git(tmp_path, "clone", "-q", str(upstream), str(root / wanted.path))
    assert is_fine(wanted)
    (root / wanted.path / "run.sh").write_text("rm -r /\n")
    assert "run.sh has 8 bytes instead of 5" in check_asset(wanted, hashes=False).problems[0]
    with pytest.raises(CellFailure, match="is not the pinned commit"):
        (upstream / "run.sh").write_text("rm -r /\n")
        fetch_code(wanted, "net", mirror)
    assert (root / wanted.path / ".git").is_dir(), "a wrong one replaces nothing"


def tree_object(repository: Path, *entries: tuple[str, str, str]) -> str:
    """The hash of a tree of (mode, name, object), which git may find malformed."""
    rows = (f"{mode} {name}".encode() + b"\0" + bytes.fromhex(named) for mode, name, named in entries)
    command = ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"]
    done = subprocess.run(command, cwd=repository, input=b"".join(rows), capture_output=True, check=True)
    return done.stdout.decode().strip()


def blob_object(repository: Path, content: str) -> str:
    command = ["git", "hash-object", "-w", "--stdin"]
    done = subprocess.run(command, cwd=repository, input=content, capture_output=True, text=True, check=True)
    return done.stdout.strip()


EVIL = "written by somebody else"
LEAVING = {
    "a chain of links": "its link a points outside of its folder",
    "a file below a link": "its link a points outside of its folder",
    "a name": r"invalid path '\.\./outside/x'",
    "a hook": r"invalid path '\.git/hooks/x'",
}


@pytest.mark.parametrize("kind", LEAVING)
def test_a_repository_that_would_leave_its_folder_is_refused(
    upstream: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # beside the folder that is filled, where one ".." too many leads
    outside = (root / code_asset(upstream).path).parent / "outside"
    outside.mkdir(parents=True)
    (outside / "target").write_text("ours")
    evil = blob_object(upstream, EVIL)

    def link(to: str) -> str:
        return blob_object(upstream, to)

    file = tree_object(upstream, ("100755", "x", evil))
    up = tree_object(upstream, ("120000", "b", link("..")))
    trees = {
        "a chain of links": [("120000", "a", link("d/b/../outside")), ("40000", "d", up)],
        "a file below a link": [("120000", "a", link(str(outside))), ("40000", "a", file)],
        "a name": [("40000", "..", tree_object(upstream, ("40000", "outside", file)))],
        "a hook": [("40000", ".git", tree_object(upstream, ("40000", "hooks", file)))],
    }
    tree = tree_object(upstream, *trees[kind])
    commit = git(upstream, "commit-tree", tree, "-m", "evil")
    git(upstream, "update-ref", "refs/heads/evil", commit)
    publish(upstream, tmp_path / "web")
    wanted = CodeAsset("owner/name", commit, tree, "infer/custom_models/code/net", "MIT")
    with pytest.raises(CellFailure, match=LEAVING[kind]) as failure:
        fetch_from(tmp_path / "web", wanted, monkeypatch)
    assert "\n" not in str(failure.value)
    assert files(root) == {"infer/custom_models/code/outside/target"}
    assert (outside / "target").read_text() == "ours"
    assert [path.name for path in outside.parent.iterdir()] == ["outside"], "nothing is left of it"


def test_nothing_is_half_there_after_a_kill(
    upstream: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = code_asset(upstream)
    publish(upstream, tmp_path / "web")
    # git itself, but slow to end
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    real = shutil.which("git")
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *read-tree*) "{real}" "$@"; touch "{tmp_path}/now"; sleep 2; '
        f'touch "{tmp_path}/late";; *) exec "{real}" "$@";; esac\n'
    )
    slow.chmod(0o755)
    code = (
        "import sys, pathlib; from imageevalkit.assets import CodeAsset, git; "
        "git.REPO, git.GITHUB = pathlib.Path(sys.argv[1]), sys.argv[2]; "
        "git.fetch_code(CodeAsset(*sys.argv[3:]), 'net', None)"
    )
    environ = {**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-c", code, str(root), f"file://{tmp_path / 'web'}", *wanted]
    killed = subprocess.Popen(words, env={**environ, "PYTHONPATH": str(Path(http.__file__).parents[2])})
    try:
        wait_for((tmp_path / "now").exists)
    finally:
        killed.kill()
        killed.wait(LONGEST_WAIT)
    assert check_asset(wanted, hashes=False).problems == [f"owner/name ({wanted.path}) is missing"]
    fetch_from(tmp_path / "web", wanted, monkeypatch)
    assert (tmp_path / "late").exists(), "a git that goes on is waited for"
    assert is_fine(wanted)
    assert sorted(path.name for path in (root / wanted.path).parent.iterdir()) == ["net"]

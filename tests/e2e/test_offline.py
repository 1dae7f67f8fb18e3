"""A node without internet: nothing but copied folders, and no socket is ever opened to the outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from custom_models.model_settings.own import CHECKPOINTS
from tests.support.checkout import environ, make_checkout, needs_driver_env, run_command
from tests.support.hub_server import COMMIT, hub_server

pytestmark = needs_driver_env

ENTRY = {
    "model_path": "org/tiny",
    "module": ".model_utils.diffusers_t2i",
    "class": "DiffusersT2I",
    "model_kwargs": {"revision": COMMIT, "dtype": "float32", "num_inference_steps": 2},
    "patterns": ["*.json", "*.txt", "*.safetensors"],
    "gpus": 0,
}
RUN = ["--model_names", "tiny-sd", "--ds_names", "quicktext", "--limit", "2"]

# Writes to $SEEN what Python asks the network, in every process that inherits PYTHONPATH. Used where there is no
# strace: that also sees what native code asks, as ONNX Runtime's telemetry.
AUDIT = """
import os, sys
def hook(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple):
        said = f"connect {args[1][0]}"
    elif event == "socket.getaddrinfo":
        said = f"getaddrinfo {args[0]}"
    else:
        return
    fd = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (said + chr(10)).encode())
    os.close(fd)
sys.addaudithook(hook)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a model of a hub, whose weights prefetch has brought; the hub is gone."""
    folder = tmp_path_factory.mktemp("node")
    late = CHECKPOINTS / "late"
    files = {p.relative_to(late).as_posix(): p.read_bytes() for p in late.rglob("*.*")}
    kit = make_checkout(folder / "kit")
    registry = kit / "infer/custom_models/load_model.py"
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS['t2i']['tiny-sd'] = {ENTRY!r}\n")
    (kit / "config.local.sh").write_text(f"INFER_ENV_MAP['tiny-sd']='{sys.prefix}'\n")
    with hub_server({**files, "picture.png": b"not wanted"}) as hub:
        fetched = run_command(
            ["bash", "utils/prefetch.sh", *RUN[:4]],
            cwd=kit,
            env=environ(kit, HF_ENDPOINT=hub.url, HF_HOME=str(folder / "home")),
        )
    assert fetched.returncode == 0, fetched.stderr
    return kit


def without_network(
    node: Path, folder: Path, command: str
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """``command`` in a network namespace with no interface, and the addresses outside that anything asked for."""
    seen = folder / "seen"
    seen.touch()
    env = environ(node, SEEN=str(seen), HF_HOME=str(node.parent / "home"), HF_HUB_OFFLINE="1")
    words = ["bash", "-c", command]
    if shutil.which("strace"):
        traced = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto", "-o", str(seen)]
        words = [*traced, *words]
    else:
        (folder / "audit").mkdir()
        (folder / "audit" / "sitecustomize.py").write_text(AUDIT)
        env["PYTHONPATH"] = f"{folder / 'audit'}{os.pathsep}{env['PYTHONPATH']}"
    result = run_command(["unshare", "-rn", *words], cwd=node, env=env)
    return result, asked_outside(seen.read_text(errors="replace"))


def asked_outside(trace: str) -> set[str]:
    """Internet addresses and names in what strace or the hook wrote, but for the machine's own."""
    found = re.findall(
        r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"|^(?:connect|getaddrinfo) (\S+)', trace, re.M
    )
    own = re.compile(r"127\.|::1$|localhost$|0\.0\.0\.0$|None$")
    return {address for group in found for address in group if address and not own.match(address)}


def can_leave_the_network() -> bool:
    done = (
        subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
        if shutil.which("unshare")
        else None
    )
    return done is not None and done.returncode == 0


needs_namespace = pytest.mark.skipif(
    not can_leave_the_network(), reason="unshare -rn does not work here: no network namespace to run in"
)


@needs_namespace
def test_a_socket_to_the_outside_would_be_seen(node: Path, tmp_path: Path) -> None:
    ask = f"'{sys.executable}' -c \"import socket; socket.create_connection(('192.0.2.7', 80), 1)\""
    result, seen = without_network(node, tmp_path, ask)
    assert result.returncode != 0
    assert seen == {"192.0.2.7"}


@needs_namespace
def test_check_and_a_whole_run_ask_nobody(node: Path, tmp_path: Path) -> None:
    check = "bash utils/prefetch.sh --check --hashes --model_names tiny-sd --ds_names quicktext"
    run = f"bash eval.sh {' '.join(RUN)}"
    result, seen = without_network(node, tmp_path, f"{check} && {run}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "org/tiny at 0123456 for model tiny-sd: all right by content" in result.stdout
    outcome = json.loads((node / "output/tiny-sd/quicktext/result.json").read_text())
    assert outcome["state"] == "complete" and outcome["coverage"]["judged"] == 2
    assert seen == set()

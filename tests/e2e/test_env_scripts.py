"""The shell helpers: environments, the Hugging Face download, the CUDA switch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from imageevalkit.assets import hub
from imageevalkit.common.python_path import usable_paths
from imageevalkit.store.cell import REPO
from tests.support.checkout import make_checkout, needs_driver_env
from tests.support.hub_server import COMMIT, hub_server
from tests.support.tree import copy_tree, environment, lend_driver_environment, one_error, run
from tests.support.waiting import LONGEST_WAIT, wait_for

STAMP = ".imageevalkit-requirements"
TOKEN = "hf_nobodyshouldseethis"


def small_tree(folder: Path) -> Path:
    """A copy of the tree that knows a driver, one model and one benchmark, none of which needs a package."""
    root = copy_tree(folder)
    shutil.rmtree(root / "requirements")
    for name in ("driver.txt", "model/tiny.txt", "benchmark/edit/small.txt", "judge/served.txt"):
        (root / "requirements" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "requirements" / name).write_text("# nothing\n")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_tree(tmp_path)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter whose ``-m venv`` copies an environment that make_env.sh really built, once."""
    folder = tmp_path_factory.mktemp("environment")
    built = folder / "built"
    make_env(small_tree(folder), "--model", "tiny", "--path", built, PYTHON=sys.executable, status=0)
    (built / STAMP).unlink()
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || exec cp -a {built}/. "$3"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def make_env(
    root: Path, *options: str | Path, status: int | None = None, **environ: str
) -> CompletedProcess[str]:
    return run("bash", root / "utils" / "make_env.sh", *options, environ=environ, status=status)


def env_python(root: Path, name: str, **environ: str) -> CompletedProcess[str]:
    return run("bash", root / "utils" / "env_python.sh", name, environ=environ)


# --- make_env.sh ---


def test_environment_is_built_once_and_updated_when_its_list_changes(root: Path, python: str) -> None:
    (root / "requirements" / "extra.txt").write_text("# nothing\n")
    (root / "requirements" / "driver.txt").write_text("-r extra.txt\n")
    first = make_env(root, "--driver", PYTHON=python, status=0)
    assert "installing 0 packages" in first.stderr and ".venv is ready" in first.stderr
    assert env_python(root, "").stdout.strip() == str(root / ".venv/bin/python")
    (root / ".venv" / "kept").touch()

    second = make_env(root, "--driver")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")

    (root / "requirements" / "extra.txt").write_text("# an included list counts too\n")
    assert "has changed" in make_env(root, "--driver").stderr
    assert (root / ".venv" / "kept").exists(), "an update must not start from nothing"
    assert make_env(root, "--driver").stderr == ""


def test_build_that_was_killed_is_not_taken_for_complete(root: Path, python: str) -> None:
    target = root / "env"
    slow = root / "slow_python"
    # the interpreter suits, but making an environment with it takes for ever
    slow.write_text(f'#!/bin/sh\n[ "$1" != -m ] || exec sleep 600\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    build = subprocess.Popen(
        ["bash", str(root / "utils" / "make_env.sh"), "--model", "tiny", "--path", str(target)],
        env=environment({"PYTHON": str(slow)}),
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (target / STAMP).exists())
    build.send_signal(signal.SIGTERM)
    assert build.wait(LONGEST_WAIT) == 143
    # killed a little later, while pip wrote: the interpreter is there, the packages are not
    (target / "bin").mkdir(exist_ok=True)
    (target / "bin" / "python").symlink_to(sys.executable)
    (target / "half_installed").touch()

    assert make_env(root, "--model", "tiny", "--path", target, PYTHON=python).returncode == 0
    assert not (target / "half_installed").exists()
    assert env_python(root, str(target)).returncode == 0


def test_failed_installation_is_one_clear_line_and_leaves_nothing_complete(root: Path, python: str) -> None:
    (root / "requirements" / "model" / "tiny.txt").write_text("./no_such_folder\n")
    target = root / "env"
    failed = make_env(root, "--model", "tiny", "--path", target, PYTHON=python, status=1)
    last = failed.stderr.strip().splitlines()[-1]
    assert last.startswith("error: pip could not install requirements/model/tiny.txt") and "log/env/" in last
    assert (target / STAMP).read_text() == "building\n"


def wheel(folder: Path, code: str) -> Path:
    """A wheel of the package ``tiny`` with that code."""
    path = folder / "tiny-1-py3-none-any.whl"
    about = "tiny-1.dist-info"
    files = {
        "tiny.py": code,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_what_the_user_has_elsewhere_is_no_part_of_an_environment(
    root: Path, python: str, tmp_path: Path
) -> None:
    (root / "requirements/model/tiny.txt").write_text(f"tiny @ file://{wheel(tmp_path, 'x = 1')}\n")
    theirs = tmp_path / "theirs"
    with zipfile.ZipFile(wheel(tmp_path, "x = 1")) as archive:
        archive.extractall(theirs)
    (tmp_path / "pip.conf").write_text("[install]\nuser = true\n")
    make_env(
        *(root, "--model", "tiny", "--path", root / "env"),
        PYTHON=python,
        PYTHONPATH=str(theirs),
        PIP_CONFIG_FILE=str(tmp_path / "pip.conf"),
        status=0,
    )
    assert list((root / "env/lib").glob("python*/site-packages/tiny.py"))


def test_an_environment_whose_main_package_does_not_import_is_not_ready(
    root: Path, python: str, tmp_path: Path
) -> None:
    code = "import os\nif 'LIBRARY' not in os.environ:\n    raise ImportError('libtiny.so.1: cannot open')\n"
    (root / "requirements/model/tiny.txt").write_text(f"tiny @ file://{wheel(tmp_path, code)}\n")
    words = (root, "--model", "tiny", "--path", root / "env")
    failed = make_env(*words, PYTHON=python)
    assert failed.returncode == 1 and "is ready" not in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith(
        "error: tiny is installed in env, but does not import: ImportError: libtiny.so.1: cannot open (log: "
    )
    (root / "env/kept").touch()
    assert make_env(*words, PYTHON=python).returncode == 1, "as long as it does not import"
    mended = make_env(*words, PYTHON=python, LIBRARY="here")
    assert mended.returncode == 0 and "is ready" in mended.stderr
    assert (root / "env/kept").exists(), "what is installed is not installed again"
    assert make_env(*words).stderr == ""


CONFIG = """
declare -gA INFER_ENV_MAP=([tiny]=tiny [tiny-xl]=tiny [flux.1-dev]=tiny [reference]='' [lost]=nobody)
declare -gA EVAL_ENV_MAP=([small]='' [small-zh]='' [many]='one two' [encoders]=small [served]=served)
"""


def test_a_name_leads_to_its_environment_and_list(root: Path) -> None:
    (root / "config.sh").write_text(CONFIG)
    for name, text in {
        "model/own.txt": "# another one\n",
        "benchmark/edit/small-zh.txt": "# the same packages\n-r small.txt\n",
        "benchmark/edit/small.txt": "encoder==1\n",
        "benchmark/t2i/alone.txt": "# Alone.\n# also for: alone-too\nother==1\n",
        "judge/served.txt": "server==1\n",
    }.items():
        (root / "requirements" / name).parent.mkdir(exist_ok=True)
        (root / "requirements" / name).write_text(text)
    # an interpreter that suits and makes nothing: what would be built where has been said by then
    idle = root / "idle_python"
    idle.write_text(f'#!/bin/sh\n[ "$1" != -m ] || exit 1\nexec {sys.executable} "$@"\n')
    idle.chmod(0o755)
    conda = root / "conda"
    for kind, name, changed, place, held in (
        ("model", "flux.1-dev", "", "conda/envs/tiny", "model/tiny.txt"),
        # another place for a model: the list is that of config.sh
        ("model", "tiny-xl", "INFER_ENV_MAP[tiny-xl]=here/mine", "here/mine", "model/tiny.txt"),
        # what has no line in config.sh goes by its list
        ("model", "own", "", "conda/envs/own", "model/own.txt"),
        ("judge", "served", "EVAL_ENV_MAP[served]=judges", "conda/envs/judges", "judge/served.txt"),
        # benchmarks whose encoders share an environment
        ("benchmark", "small", "", "conda/envs/small", "benchmark/edit/small.txt"),
        # a list of several benchmarks, each with an environment of its own
        ("benchmark", "alone-too", "", "conda/envs/alone-too", "benchmark/t2i/alone.txt"),
    ):
        (root / "config.local.sh").write_text(changed)
        done = make_env(root, f"--{kind}", name, CONDA_BASE=str(conda), PYTHON=str(idle))
        said = done.stderr.splitlines()[0]
        assert said.startswith(f"making {place} and installing ") and f"of requirements/{held} " in said
        shutil.rmtree(conda, ignore_errors=True)
        shutil.rmtree(root / "here", ignore_errors=True)


# --- make_env.sh with conda. conda itself comes from no registry that is reached here: this one has its command line,
# --- its output and its way with folders, and copies an environment that make_env.sh really built.


def install_conda(base: Path, python: str) -> None:
    """A conda in ``base`` that writes its arguments to ``called``."""
    (base / "bin").mkdir(parents=True, exist_ok=True)
    conda = base / "bin" / "conda"
    info = f'{{\\n "root_prefix": "{base}",\\n "envs": []\\n}}'
    conda.write_text(
        f"""#!/bin/sh
        case $1 in
          --version) echo "conda 26.9.0" ;;
          info) printf '{info}' ;;
          create)
            echo "$@" >>{base}/called
            [ -z "$(ls -A "$4" 2>/dev/null)" ] || {{ echo "error    libmamba Non-conda folder exists"; exit 1; }}
            mkdir -p "$4/conda-meta"
            {python} -m venv "$4" ;;
        esac
        """
    )
    conda.chmod(0o755)


def test_conda_base_from_config_names_the_place_and_its_conda_is_used(root: Path, python: str) -> None:
    base = root / "conda"
    install_conda(base, python)
    (root / "requirements/model/tiny.txt").write_text("# for one model\n# python: 3.10\n")
    (root / "config.sh").write_text(f'CONDA_BASE="{base}"\ndeclare -A INFER_ENV_MAP=([tiny]=tiny)\n')
    built = make_env(root, "--model", "tiny", status=0)
    assert "config.local.sh" not in built.stderr, "config.sh says already that a run uses it"
    assert (base / "called").read_text() == f"create --yes --prefix {base}/envs/tiny python=3.10 pip\n"
    assert env_python(root, "tiny").stdout.strip() == str(base / "envs/tiny/bin/python")
    assert make_env(root, "--model", "tiny").stderr == ""


# --- env_python.sh ---


def test_env_python_names_what_is_missing(root: Path) -> None:
    assert "make_env.sh --driver" in one_error(env_python(root, ""), 2)
    assert "CONDA_BASE" in one_error(env_python(root, "bagel"), 2)
    lend_driver_environment(root)
    assert env_python(root, "./.venv").stdout.strip() == f"{root}/./.venv/bin/python"


def test_the_entries_of_pythonpath_that_a_python_can_use(tmp_path: Path) -> None:
    (tmp_path / "env/lib/python3.12").mkdir(parents=True)
    (tmp_path / "env/lib/python3.1").symlink_to("python3.12")  # as conda does
    modules = {
        "code": "model.py",
        "own_extensions": "ops/_C.cpython-310-x86_64-linux-gnu.so",
        "pure": "tiny-1.dist-info/METADATA",
        "of_310": "tiny/_C.cpython-310-x86_64-linux-gnu.so",
        "of_312": "_tiny.cpython-312-x86_64-linux-gnu.so",
        "x/lib/python3.12/site-packages": "tiny.py",
        "x/lib/python3.9/site-packages": "tiny.py",
        "x/lib/python3.9": "os.py",
    }
    for folder, file in modules.items():
        (tmp_path / folder / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).touch()
    for folder in ("of_310", "of_312"):
        (tmp_path / folder / "tiny-1.dist-info").mkdir()
    paths = os.pathsep.join(str(tmp_path / folder) for folder in modules)
    kept = usable_paths(paths, tmp_path / "env/bin/python")
    left_out = ["of_310", "x/lib/python3.9/site-packages", "x/lib/python3.9"]
    assert kept == [str(tmp_path / folder) for folder in modules if folder not in left_out]
    assert usable_paths(paths, "/no/environment/bin/python") == paths.split(os.pathsep)


def test_a_clone_has_the_scripts_as_bash_can_run_them(tmp_path: Path) -> None:
    """Whatever core.autocrlf says, which Git for Windows sets, and which a shared home then has on Linux too."""
    git = ("git", "-c", "core.autocrlf=true", "-c", "user.name=x", "-c", "user.email=x@example.org")
    (tmp_path / "kit").mkdir()
    shutil.copy(REPO / ".gitattributes", tmp_path / "kit")
    (tmp_path / "kit/eval.sh").write_bytes(b"set -e\necho works\n")
    (tmp_path / "kit/image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        assert run(*git, *words, cwd=tmp_path / "kit").returncode == 0
    assert run(*git, "clone", "-q", "kit", "clone", cwd=tmp_path).returncode == 0
    for name in ("eval.sh", "image.png"):
        assert (tmp_path / "clone" / name).read_bytes() == (tmp_path / "kit" / name).read_bytes()


# --- config_defaults.sh ---

SETTINGS = ("CONDA_BASE", "TORCH_HOME", "HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "AZURE_OPENAI_ENDPOINT")


def settings(result: CompletedProcess[str]) -> dict[str, str | None]:
    """The :data:`SETTINGS` that a process prints with ``env``."""
    assert result.returncode == 0, result.stderr
    found = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    return {name: found.get(name) for name in SETTINGS}


# --- eval/*.sh ---


@needs_driver_env
def test_the_evaluation_script_takes_its_benchmark_from_its_own_name(tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "kit")
    assert {path.resolve() for path in root.glob("eval/*.sh")} == {root / "utils/evaluate.sh"}
    usage = one_error(run("bash", "eval/wise.sh", cwd=root), 2)
    assert usage.endswith("eval/wise.sh MODEL_NAME EVAL_ENV")
    shutil.copy(root / "eval/wise.sh", root / "eval/copied.sh")
    done = run("bash", root / "eval/copied.sh", "m", "", cwd=root)
    assert "there are no images of m/copied: " in one_error(done, 2)


# --- download_model_hf_home.sh ---


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A copy of the tree with the driver's environment."""
    root = copy_tree(tmp_path)
    lend_driver_environment(root)
    return root


def test_download_arrives_with_the_token_in_the_header_alone(kit: Path, tmp_path: Path) -> None:
    (kit / "config.local.sh").write_text(f'HF_TOKEN="{TOKEN}"\nHF_HOME="{tmp_path}/home"\n')
    files = {"config.json": b"{}", "weights.bin": b"w" * 100_000, "readme.md": b"no"}
    with hub_server(files) as server:
        server.failures = 1
        result = run(
            *("bash", kit / "utils/download_model_hf_home.sh", "org/tiny", "nobody/x"),
            *("--include", "*.json", "--include", "*.bin"),
            environ={"HF_ENDPOINT": server.url},
        )
        asked = [seen for seen in server.seen if "/org/tiny/" in seen.path]
    snapshot = tmp_path / "home/hub/models--org--tiny/snapshots" / COMMIT
    assert {p.name: p.read_bytes() for p in snapshot.iterdir()} == {
        "config.json": files["config.json"],
        "weights.bin": files["weights.bin"],
    }
    assert asked and all(seen.authorization == f"Bearer {TOKEN}" for seen in asked)
    # the unknown repository is reported, and did not stop the other
    assert result.returncode == 1 and "nobody/x: the hub has no such model" in result.stderr
    assert TOKEN not in result.stdout + result.stderr
    written = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "config.local.sh"]
    assert not [p for p in written if TOKEN.encode() in p.read_bytes()]


def test_killed_download_goes_on_where_it_stopped(kit: Path, tmp_path: Path) -> None:
    big = bytes(range(256)) * (hub.LARGE // 256 + 1000)
    command = ["bash", str(kit / "utils/download_model_hf_home.sh"), "org/tiny"]
    with hub_server({"big.bin": big}) as server:
        environ = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
        server.cuts, server.cut_after = 99, 40_000_000
        first = subprocess.Popen(command, env=environment(environ), stderr=subprocess.DEVNULL)
        wait_for(lambda: any(seen.range for seen in server.downloads()))  # one cut, resumed by the library
        for line in Path(f"/proc/{first.pid}/cmdline"), Path(f"/proc/{first.pid}/task/{first.pid}/cmdline"):
            assert TOKEN.encode() not in line.read_bytes()
        first.kill()
        first.wait()
        server.cuts = 0
        server.seen.clear()
        assert run(*command, environ=environ).returncode == 0
        (again,) = server.downloads()
    assert again.range and int(again.range[6:-1]) >= 10_000_000
    snapshot = tmp_path / "home/hub/models--org--tiny/snapshots" / COMMIT
    assert (snapshot / "big.bin").read_bytes() == big
    assert not list(tmp_path.rglob("*.resume"))


# --- use_cuda.sh ---


def test_use_cuda_switches_and_prints_the_version(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "cuda-12.4"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.1"\n')
    (home / "bin/nvcc").chmod(0o755)
    script = f"source '{root}/utils/use_cuda.sh' 12.4; echo $? $CUDA_HOME $LD_LIBRARY_PATH; command -v nvcc"
    done = run("bash", "-c", script, environ={"LD_LIBRARY_PATH": "/mine", "CUDA_BASE": str(tmp_path)})
    assert done.stdout.splitlines() == [
        f"CUDA 12.4 | CUDA_HOME={home}",
        f"0 {home} {home}/lib64:/mine",
        f"{home}/bin/nvcc",
    ]

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

from imageevalkit.assets import HubAsset, http, hub
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.python_path import usable_paths
from imageevalkit.store.cell import REPO
from tests.support.checkout import find_no_text, make_checkout, needs_driver_env, run_eval
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
    first = make_env(small_tree(folder), "--model", "tiny", "--path", built, PYTHON=sys.executable)
    assert first.returncode == 0, first.stderr
    (built / STAMP).unlink()
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" != "-m venv" ] || exec cp -a {built}/. "$3"\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def make_env(root: Path, *options: str | Path, **environ: str) -> CompletedProcess[str]:
    return run("bash", root / "utils" / "make_env.sh", *options, environ=environ)


def env_python(root: Path, name: str, **environ: str) -> CompletedProcess[str]:
    return run("bash", root / "utils" / "env_python.sh", name, environ=environ)


# --- make_env.sh ---


def test_environment_is_built_once_and_updated_when_its_list_changes(root: Path, python: str) -> None:
    (root / "requirements" / "extra.txt").write_text("# nothing\n")
    (root / "requirements" / "driver.txt").write_text("-r extra.txt\n")
    first = make_env(root, "--driver", PYTHON=python)
    assert first.returncode == 0, first.stderr
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


def test_two_builds_at_once_do_the_work_once(root: Path, python: str) -> None:
    target = root / "env"
    command = ["bash", str(root / "utils/make_env.sh"), "--benchmark", "small", "--path", str(target)]
    builds = [
        subprocess.Popen(command, env=environment({"PYTHON": python}), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [build.communicate(timeout=LONGEST_WAIT)[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], errors
    assert sorted(error.count("is ready") for error in errors) == [0, 1], errors


def test_failed_installation_is_one_clear_line_and_leaves_nothing_complete(root: Path, python: str) -> None:
    (root / "requirements" / "model" / "tiny.txt").write_text("./no_such_folder\n")
    target = root / "env"
    failed = make_env(root, "--model", "tiny", "--path", target, PYTHON=python)
    assert failed.returncode == 1
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
    built = make_env(
        *(root, "--model", "tiny", "--path", root / "env"),
        PYTHON=python,
        PYTHONPATH=str(theirs),
        PIP_CONFIG_FILE=str(tmp_path / "pip.conf"),
    )
    assert built.returncode == 0, built.stderr
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


def test_environment_of_a_user_is_left_alone(root: Path, python: str) -> None:
    mine = root / "conda" / "envs" / "tiny"
    mine.mkdir(parents=True)
    (mine / "work").touch()
    result = make_env(root, "--model", "tiny", CONDA_BASE=str(root / "conda"), PYTHON=python)
    assert "not made by this script" in one_error(result, 2)
    assert (mine / "work").exists()


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
        # another environment for a model, or another place: the list is that of config.sh
        ("model", "tiny-xl", "INFER_ENV_MAP[tiny-xl]=mine", "conda/envs/mine", "model/tiny.txt"),
        ("model", "tiny-xl", "INFER_ENV_MAP[tiny-xl]=here/mine", "here/mine", "model/tiny.txt"),
        ("model", "tiny-xl", "declare -A INFER_ENV_MAP=([tiny-xl]=own)", "conda/envs/own", "model/own.txt"),
        # what has no line in config.sh goes by its list
        ("model", "own", "", "conda/envs/own", "model/own.txt"),
        ("judge", "served", "EVAL_ENV_MAP[served]=judges", "conda/envs/judges", "judge/served.txt"),
        # benchmarks whose encoders share an environment
        ("benchmark", "small", "", "conda/envs/small", "benchmark/edit/small.txt"),
        (
            "benchmark",
            "small-zh",
            "EVAL_ENV_MAP[encoders]=all",
            "conda/envs/all",
            "benchmark/edit/small-zh.txt",
        ),
        ("benchmark", "encoders", "EVAL_ENV_MAP[encoders]=all", "conda/envs/all", "benchmark/edit/small.txt"),
        ("benchmark", "small", "EVAL_ENV_MAP[small]=served", "conda/envs/served", "judge/served.txt"),
        # a list of several benchmarks, each with an environment of its own
        ("benchmark", "alone-too", "", "conda/envs/alone-too", "benchmark/t2i/alone.txt"),
    ):
        (root / "config.local.sh").write_text(changed)
        done = make_env(root, f"--{kind}", name, CONDA_BASE=str(conda), PYTHON=str(idle))
        said = done.stderr.splitlines()[0]
        assert said.startswith(f"making {place} and installing ") and f"of requirements/{held} " in said
        shutil.rmtree(conda, ignore_errors=True)
        shutil.rmtree(root / "here", ignore_errors=True)


def test_a_place_of_its_own_is_told_to_config(root: Path, python: str) -> None:
    (root / "config.sh").write_text(CONFIG)
    built = make_env(root, "--model", "tiny-xl", "--path", root / "x", PYTHON=python)
    assert built.stderr.endswith(f"set INFER_ENV_MAP['tiny-xl']='{root}/x' in config.local.sh\n")


def test_a_name_that_leads_nowhere(root: Path) -> None:
    (root / "config.sh").write_text(CONFIG + "EVAL_ENV_MAP[bare]=''\n")
    # a class of that name is enough, as is a script
    for file, text in {
        "benchmarks/one_file/benchmark.py": 'name = \'one-file\'\nname, version = "variant", "1"\n',
        "eval/scripted.sh": "",
    }.items():
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
    nothing = "nothing to build: "
    for kind, name, status, said in (
        ("model", "reference", 0, f"{nothing}model 'reference' runs in the driver's environment"),
        *(("benchmark", name, 0, f"{nothing}benchmark '{name}'") for name in ("bare", "variant", "scripted")),
        ("model", "flux1-dev", 2, "unknown model 'flux1-dev' (did you mean 'flux.1-dev'?)"),
        ("benchmark", "smal", 2, "unknown benchmark 'smal' (did you mean 'small'?)"),
        ("model", "lost", 2, "no list is named after environment 'nobody' of model 'lost'"),
        ("benchmark", "many", 2, "several environments (one two)"),
    ):
        result = make_env(root, f"--{kind}", name, CONDA_BASE=str(root / "conda"))
        assert (result.returncode, result.stderr.count("\n")) == (status, 1)
        assert said in result.stderr
    assert not (root / "conda").exists()


def test_no_python_at_all_still_names_what_is_wrong(root: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "setsid", "flock", "sha256sum", "sort", "paste"):
        (tools / name).symlink_to(str(shutil.which(name)))
    said = one_error(make_env(root, "--model", "tini", PATH=str(tools)), 2)
    assert "unknown model 'tini': neither" in said and "lists: tiny" in said


# --- make_env.sh with conda. conda itself comes from no registry that is reached here: this one has its command line,
# --- its output and its way with folders, and copies an environment that make_env.sh really built.


def install_conda(base: Path, python: str, slow: str = "") -> Path:
    """A conda in ``base`` that writes its arguments to ``called``; ``slow`` is run while it works."""
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
            [ "$5" != python=3.9 ] || {{ printf 'Solving\n\nPackagesNotFoundError: no python 3.9\n\n\n'; exit 1; }}
            mkdir -p "$4/conda-meta"
            {slow}
            {python} -m venv "$4" ;;
        esac
        """
    )
    conda.chmod(0o755)
    return conda


def test_conda_base_from_config_names_the_place_and_its_conda_is_used(root: Path, python: str) -> None:
    base = root / "conda"
    install_conda(base, python)
    (root / "config.sh").write_text(f'CONDA_BASE="{base}"\ndeclare -A INFER_ENV_MAP=([tiny]=tiny)\n')
    built = make_env(root, "--model", "tiny")
    assert built.returncode == 0
    assert "config.local.sh" not in built.stderr, "config.sh says already that a run uses it"
    assert (base / "called").read_text() == f"create --yes --prefix {base}/envs/tiny python=3.12 pip\n"
    assert env_python(root, "tiny").stdout.strip() == str(base / "envs/tiny/bin/python")
    assert make_env(root, "--model", "tiny").stderr == ""


def test_conda_on_the_path_says_where_its_environment_goes_and_an_interpreter_of_the_users_wins(
    root: Path, python: str
) -> None:
    base = root / "conda"
    conda = install_conda(base, python)
    built = make_env(root, "--model", "tiny", PATH=f"{conda.parent}:/usr/bin:/bin")
    assert built.returncode == 0, built.stderr
    assert f"CONDA_BASE={base} in config.local.sh" in built.stderr.splitlines()[0]
    assert env_python(root, "tiny", CONDA_BASE=str(base)).returncode == 0
    assert make_env(root, "--model", "tiny", "--path", root / "one", CONDA_BASE=str(base)).returncode == 0
    assert (root / "one/conda-meta").exists()
    two = make_env(root, "--model", "tiny", "--path", root / "two", CONDA_BASE=str(base), PYTHON=python)
    assert two.returncode == 0 and not (root / "two/conda-meta").exists()


def test_conda_that_was_killed_leaves_nothing_in_the_way(root: Path, python: str) -> None:
    base = root / "conda"
    install_conda(base, python, slow="exec sleep 600")
    command = ["bash", str(root / "utils/make_env.sh"), "--model", "tiny"]
    build = subprocess.Popen(command, env=environment({"CONDA_BASE": str(base)}), stderr=subprocess.DEVNULL)
    wait_for(lambda: (base / "envs/tiny/conda-meta").exists())
    build.terminate()
    assert build.wait(LONGEST_WAIT) == 143
    install_conda(base, python)
    assert make_env(root, "--model", "tiny", CONDA_BASE=str(base)).returncode == 0


def test_the_python_of_a_list(root: Path, python: str) -> None:
    base = root / "conda"
    install_conda(base, python)
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    tiny = root / "requirements/model/tiny.txt"

    tiny.write_text("# for one model\n# python: 3.10\n")
    (root / "requirements/model/more.txt").write_text("-r tiny.txt\n")
    assert make_env(root, "--model", "more", CONDA_BASE=str(base)).returncode == 0
    assert "python=3.10 pip" in (base / "called").read_text()

    tiny.write_text("# python: 3.9\n")
    failed = make_env(root, "--model", "tiny", CONDA_BASE=str(base))
    assert failed.returncode == 1
    assert "PackagesNotFoundError: no python 3.9 (log: " in failed.stderr.splitlines()[-1]

    said = one_error(make_env(root, "--model", "tiny", "--path", root / "x", PYTHON=python), 2)
    assert "needs Python 3.9, and there is none" in said and "set CONDA_BASE to a conda installation" in said
    tiny.write_text("# python: three\n")
    assert "names no Python like 3.10" in one_error(
        make_env(root, "--model", "tiny", "--path", root / "x"), 2
    )

    # a list that moves to another Python makes the environment anew
    tiny.write_text(f"# python: {mine}\n")
    path = root / "env"
    assert make_env(root, "--model", "tiny", "--path", path, PYTHON=python).returncode == 0
    (path / "old").touch()
    tiny.write_text(f"# python: {mine}\n# more\n")
    assert make_env(root, "--model", "tiny", "--path", path, PYTHON=python).returncode == 0
    assert (path / "old").exists()
    tiny.write_text("# python: 3.10\n")
    (path / "bin/python").unlink()
    (path / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    (path / "bin/python").chmod(0o755)
    assert "making env" in make_env(root, "--model", "tiny", "--path", path, CONDA_BASE=str(base)).stderr
    assert not (path / "old").exists()


def test_wrong_usage_of_make_env(root: Path) -> None:
    for words, said in (
        ("", "--driver"),
        ("--driver --model tiny", "say one of"),
        ("--model", "--model needs a value"),
        ("--model tini --path x", "lists: tiny"),
        ("--benchmark huge --path x", "lists: served small"),
        ("--model tiny", "CONDA_BASE"),
        ("--requirements none.txt --path x", "none.txt"),
        ("--fast", "unknown option '--fast'"),
    ):
        assert said in one_error(make_env(root, *words.split(), PYTHON=sys.executable), 2)


def test_python_that_does_not_suit(root: Path) -> None:
    old = root / "old_python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert "no Python 3.11" in one_error(make_env(root, "--driver", PYTHON=str(old)), 2)
    bare = root / "bare_python"
    bare.write_text(f'#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    assert "apt install python3-venv" in one_error(make_env(root, "--driver", PYTHON=str(bare)), 2)
    assert not (root / ".venv").exists()


def test_machine_without_flock_is_told_so_at_once(root: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "setsid"):
        (tools / name).symlink_to(str(shutil.which(name)))
    said = one_error(make_env(root, "--driver", PATH=str(tools)), 2)
    assert "needs flock and sha256sum" in said and "apt install util-linux" in said


def test_what_another_user_put_in_the_place_of_the_lock_is_told(root: Path, tmp_path: Path) -> None:
    lock = tmp_path / "env.lock"
    for put in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        put(lock)
        said = one_error(make_env(root, "--model", "tiny", "--path", tmp_path / "env"), 2)
        assert said == f"error: {lock} is no regular file, as a lock must be: have it removed"
        assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "env").exists()
        lock.unlink()


def test_a_filesystem_without_locks_is_told_as_what_it_is(root: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    # what flock of util-linux says and returns where the kernel says ENOLCK
    (tools / "flock").write_text('#!/bin/sh\necho "flock: $2: No locks available" >&2\nexit 71\n')
    (tools / "flock").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    said = one_error(make_env(root, "--model", "tiny", "--path", tmp_path / "env", PATH=path), 2)
    assert said.startswith(
        f"error: {tmp_path} is on a filesystem without file locks (flock: 9: No locks available)"
    )


# --- env_python.sh ---


def test_env_python_names_what_is_missing(root: Path) -> None:
    assert "make_env.sh --driver" in one_error(env_python(root, ""), 2)
    assert "CONDA_BASE" in one_error(env_python(root, "bagel"), 2)
    assert "/c/envs/bagel/bin/python" in one_error(env_python(root, "bagel", CONDA_BASE="/c"), 2)
    assert "/no/where/bin/python" in one_error(env_python(root, "/no/where"), 2)
    lend_driver_environment(root)
    assert env_python(root, "./.venv").stdout.strip() == f"{root}/./.venv/bin/python"


@needs_driver_env
def test_helpers_work_where_cdpath_is_set(tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "kit")
    environ = {"CDPATH": f".:{tmp_path}:{root}", "PYTHON": sys.executable}
    done = run("bash", "utils/env_python.sh", "", cwd=root, environ=environ)
    assert done.stdout == f"{root}/.venv/bin/python\n"
    done = run("bash", "utils/make_env.sh", "--model", "reference-noise", cwd=root, environ=environ)
    assert done.returncode == 0 and "nothing to build: model 'reference-noise'" in done.stderr
    done = run("bash", "utils/prefetch.sh", "--help", cwd=root, environ=environ)
    assert done.returncode == 0, done.stderr
    done = run("bash", "eval/wise.sh", "m", "", cwd=root, environ=environ)
    assert "there are no images of m/wise: " in one_error(done, 2)
    done = run("bash", "utils/download_model_hf_home.sh", cwd=root, environ=environ)
    assert "REPO" in one_error(done, 2)


@needs_driver_env
def test_packages_of_another_python_are_left_out(tmp_path: Path) -> None:
    """As a module system of a cluster puts them on PYTHONPATH."""
    root = make_checkout(tmp_path / "kit")
    theirs = tmp_path / "lib/python3.8/site-packages"
    for name in ("msgspec", "PIL"):
        (theirs / name).mkdir(parents=True)
        (theirs / name / "__init__.py").write_text("raise ImportError('built for Python 3.8')\n")
    listed = run_eval(root, "--list", PYTHONPATH=f"{theirs}:{tmp_path}", PYTHONHOME="/nowhere")
    assert listed.returncode == 0, listed.stderr
    assert listed.stderr == f"note: PYTHONPATH names {theirs}, packages of another Python: left out\n"
    evaluated = run("bash", "eval/wise.sh", "m", "", cwd=root, environ={"PYTHONPATH": str(theirs)})
    assert "there are no images of m/wise: " in evaluated.stderr.splitlines()[-1]


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


@pytest.mark.parametrize("windows", [False, True])
def test_helpers_take_the_same_settings_as_eval_sh(root: Path, windows: bool) -> None:
    for name in ("config.sh", "eval.sh"):
        shutil.copy(REPO / name, root)
    (root / "config.local.sh").write_text(
        'CONDA_BASE=/file/conda\nTORCH_HOME=""\nHF_TOKEN=file-token\nHF_ENDPOINT=http://file\n'
        "AZURE_OPENAI_ENDPOINT=http://file\n"
    )
    for name in ("config.sh", "config.local.sh") if windows else ():
        text = (root / name).read_bytes().replace(b"\n", b"\r\n")
        (root / name).write_bytes(b"\xef\xbb\xbf" + text)
    environ = {
        "CONDA_BASE": "/environment/conda",
        "TORCH_HOME": "/environment/torch",
        "HF_HOME": "/environment/hf",
        "HF_TOKEN": "environment-token",
        "AZURE_OPENAI_ENDPOINT": "http://environment",
    }
    expected = {
        "CONDA_BASE": "/file/conda",
        # the file empties it, which is no folder but the library's default
        "TORCH_HOME": None,
        # config.sh leaves it to the environment
        "HF_HOME": "/environment/hf",
        # a token and the endpoint it belongs to: the environment first
        "HF_TOKEN": "environment-token",
        "HF_ENDPOINT": "http://file",
        "AZURE_OPENAI_ENDPOINT": "http://environment",
    }
    script = f"set -euo pipefail; . utils/config_defaults.sh; config_defaults {' '.join(SETTINGS)}; env"
    assert settings(run("bash", "-c", script, cwd=root, environ=environ)) == expected
    launcher = root / ".venv/bin/python"
    launcher.parent.mkdir(parents=True)
    launcher.write_text('#!/bin/sh\n[ "$1" = -c ] || exec env\n')
    launcher.chmod(0o755)
    (root / "utils/make_env.sh").write_text("exit 0\n")  # it is fine
    assert settings(run("bash", "eval.sh", cwd=root, environ=environ)) == expected


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
    (root / "eval/linked.sh").symlink_to("../utils/evaluate.sh")
    shutil.copy(root / "eval/wise.sh", root / "eval/copied.sh")
    for script in ("eval/linked.sh", root / "eval/copied.sh"):
        done = run("bash", script, "m", "", cwd=root)
        assert f"there are no images of m/{Path(script).stem}: " in one_error(done, 2)
    done = run("bash", "utils/evaluate.sh", "m", "", "my-bench", cwd=root)
    assert "there are no images of m/my-bench: " in one_error(done, 2)
    said = one_error(run("bash", "utils/evaluate.sh", "m", "", cwd=root), 2)
    assert said.endswith("usage: bash utils/evaluate.sh MODEL_NAME EVAL_ENV BENCHMARK")


@needs_driver_env
def test_a_checkout_without_links_evaluates_all_the_same(tmp_path: Path) -> None:
    root = find_no_text(make_checkout(tmp_path / "kit"))
    (root / "eval/quicktext.sh").unlink()
    (root / "eval/quicktext.sh").write_text("../utils/evaluate.sh")
    words = ["--model_names", "reference-typeset", "--ds_names", "quicktext", "--limit", "1"]
    ended = run_eval(root, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # what a user has put there instead is run
    (root / "eval/quicktext.sh").write_text("echo $# > own.txt\nexit 1\n")
    assert run_eval(root, *words).returncode == 1
    assert (root / "own.txt").read_text() == "2\n"


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


def test_hub_that_stays_away_is_given_up_after_bounded_tries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def refuse(*_: object) -> None:
        calls.append(1)
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(hub, "_attempt", refuse)
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(hub, "check_reach", lambda *_: None)
    with pytest.raises(CellFailure, match="no route to the hub"):
        hub.snapshot(HubAsset("org/tiny"))
    assert len(calls) == http.TRIES
    assert capsys.readouterr().err.count("no route to the hub; try ") == http.TRIES - 1


def test_wrong_usage_of_the_download(kit: Path) -> None:
    script = kit / "utils/download_model_hf_home.sh"
    assert "REPO" in one_error(run("bash", script), 2)
    assert "--token" in one_error(run("bash", script, "org/tiny", "--token", "x"), 2)
    offline = run("bash", script, "org/tiny", environ={"HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 1 and "HF_HUB_OFFLINE" in offline.stderr


# --- use_cuda.sh ---


@pytest.fixture
def toolkits(tmp_path: Path) -> Path:
    """A folder with two CUDA toolkits."""
    for version in ("11.8", "12.4"):
        nvcc = tmp_path / f"cuda-{version}" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {version}, V{version}.1"\n')
        nvcc.chmod(0o755)
    return tmp_path


def use_cuda(root: Path, arguments: str, **environ: str) -> CompletedProcess[str]:
    script = (
        f"set -u; before=$PATH; source '{root}/utils/use_cuda.sh' {arguments}; echo status=$?; "
        'echo home="${CUDA_HOME:-none}"; echo libraries="${LD_LIBRARY_PATH:-none}"; '
        '[[ $PATH == "$before" ]] && echo unchanged || command -v nvcc'
    )
    cleared = {"LD_LIBRARY_PATH": "", "CUDA_HOME": ""}
    return run("bash", "-c", script, environ={**cleared, **environ})


def test_use_cuda_switches_and_prints_the_version(root: Path, toolkits: Path) -> None:
    home = toolkits / "cuda-12.4"
    for base in (toolkits, home):
        lines = use_cuda(root, "12.4", CUDA_BASE=str(base)).stdout.splitlines()
        assert lines == [
            f"CUDA 12.4 | CUDA_HOME={home}",
            "status=0",
            f"home={home}",
            f"libraries={home}/lib64",
            f"{home}/bin/nvcc",
        ]
    after = use_cuda(root, "11.8", CUDA_BASE=str(toolkits), LD_LIBRARY_PATH="/mine").stdout
    assert f"libraries={toolkits}/cuda-11.8/lib64:/mine" in after


def test_use_cuda_refuses_without_changing_or_ending_the_shell(root: Path, toolkits: Path) -> None:
    for arguments, base, said in (
        ("13.9", str(toolkits), "no CUDA 13.9"),
        ("", str(toolkits), "usage"),
        ("12.4", "", "CUDA_BASE is not set"),
    ):
        result = use_cuda(root, arguments, CUDA_BASE=base)
        assert result.returncode == 0
        assert result.stdout.splitlines() == ["status=2", "home=none", "libraries=none", "unchanged"]
        assert len(result.stderr.splitlines()) == 1 and said in result.stderr
    assert "source it" in one_error(run("bash", root / "utils/use_cuda.sh", "12.4"), 2)


# --- .ci/run ---


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install")
def test_ci_gets_the_programs_that_tests_need_where_it_may_and_says_where_not(tmp_path: Path) -> None:
    (tmp_path / "kit/.ci").mkdir(parents=True)
    shutil.copy(REPO / ".ci/run", tmp_path / "kit/.ci/run")
    (tmp_path / "kit/test.sh").write_text("echo the tests\nexit 7\n")
    tools, called = tmp_path / "tools", tmp_path / "called"
    tools.mkdir()
    for name in ("bash", "dirname", "timeout"):
        (tools / name).symlink_to(str(shutil.which(name)))
    of_slurm = ("slurmctld", "munged", "slurmdbd", "mariadbd", "mariadb")
    for name in ("strace", "openssl", *of_slurm, "apt-get"):
        (tools / name).touch()
        (tools / name).chmod(0o755)
    lacking = "chromium chromium-driver"
    said = f"note: apt-get could not install {lacking}: the tests that need them will be skipped\n"
    # where the mirror does not answer, then where it does
    for end, told in (("exit 100", said), (f"> {tools}/chromium; > {tools}/chromedriver", "")):
        (tools / "apt-get").write_text(f'#!{shutil.which("bash")}\necho "$@" >>{called}\n{end}\n')
        done = run("bash", tmp_path / "kit/.ci/run", environ={"PATH": str(tools)})
        assert (done.returncode, done.stdout) == (7, "the tests\n"), (
            "whatever could be installed: they decide"
        )
        assert done.stderr == told
    first, second, install, *_ = called.read_text().splitlines()
    assert first.endswith(" update") and second.endswith(" update")
    assert install.endswith(f" install -y --no-install-recommends {lacking}")

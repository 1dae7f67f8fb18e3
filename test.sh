#!/usr/bin/env bash
# Runs all tests, linters and type checks, and builds the documentation site. It makes the environments for this.
#   bash test.sh [pytest arguments]
#   bash test.sh --fast [pytest arguments]    only the unit tests
#   bash test.sh --gpu [--wheels FOLDER] [--tiny] [--parts A,B] [--seconds S] [--write FILE]    examines a GPU
# --wheels: for a machine without a network; tests/gpu/pack.sh fills the folder.
set -euo pipefail
for word; do
  case $word in -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
    exit
    ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")"
# modules are compiled at their first import: compiling all of torch during installation takes longer
unset PYTHONPATH PYTHONDONTWRITEBYTECODE
export PIP_NO_COMPILE=no # pip reads it as the value of its setting "compile"
export PIP_USER=0        # a pip.conf with "user = true" does not go with --target

is_gpu=''
if [[ ${1-} == --gpu ]]; then
  is_gpu=1
  shift
fi
# copies of the tree in tests contain the compiled modules, too
compile() {
  .venv-test/bin/python -m compileall -q benchmarks eval_models imageevalkit infer utils
}
if [[ $is_gpu && ${1-} == --wheels ]]; then
  bash tests/gpu/install.sh "${2-}"
  compile
  exec .venv-test/bin/python -m tests.gpu "${@:3}"
fi

if [[ ${1-} == --fast ]]; then
  bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test
  exec .venv-test/bin/python -m pytest -n 2 --dist worksteal tests/unit "${@:2}"
fi

# background processes end with this script
checked=''
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -f "$checked"' EXIT
checked=$(mktemp)

# the users' environment for the end-to-end tests, beside the environment of the tests
bash utils/make_env.sh --driver &
driver=$!
bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test

bin="$PWD/.venv-test/bin"

# outside of the environment, so that only the tests that need these packages see them; without them these are skipped
install_beside() {
  local list=requirements/test_$1.txt packages=.venv-test/${1//_/-}-packages
  ! cmp -s "$list" "$packages/requirements.txt" || return 0
  rm -rf "$packages"
  if "$bin/python" -m pip --disable-pip-version-check --no-input install -q --no-deps --target "$packages" -r "$list"; then
    cp "$list" "$packages/requirements.txt"
  else
    rm -rf "$packages"
    echo "note: the packages of $list cannot be installed: the tests that need them will be skipped" >&2
  fi
}
if [[ $is_gpu ]]; then
  install_beside dreamsim
  wait "$driver"
  compile
  status=0
  "$bin/python" -m tests.gpu "$@" || status=$?
  exit "$status"
fi
waits=("$driver")
for name in dreamsim mplug nudenet; do
  install_beside "$name" &
  waits+=($!)
done

# the page's linter and bundler, and the accessibility checker of its tests
install_page() {
  local page=imageevalkit/report/page
  [[ ! $page/node_modules/.package-lock.json -nt $page/package-lock.json ]] || return 0
  command -v npm >/dev/null && timeout 300 npm ci --prefix "$page" --no-audit --no-fund --loglevel error ||
    echo "note: the packages of $page cannot be installed: the tests that need them will be skipped" >&2
}
install_page &
waits+=($!)

check() {
  local -a scripts
  mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' '.ci/run')
  "$bin/shellcheck" "${scripts[@]}"
  "$bin/shfmt" -i 2 -ci -d "${scripts[@]}"
  "$bin/ruff" check .
  "$bin/ruff" format --check .
  "$bin/mypy"
  bash utils/make_env.sh --requirements requirements/docs.txt --path .venv-docs
  NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet
}
# in parallel to the tests, which wait for processes and servers half of the time
check >"$checked" 2>&1 &
checks=$!

for job in "${waits[@]}"; do wait "$job"; done
compile

echo "== tests"
status=0
# more workers than cores: they wait for processes and servers half of the time
"$bin/python" -m pytest -n 4 --dist loadfile --no-loadscope-reorder "$@" || status=$?
echo "== shellcheck, shfmt, ruff, mypy, the site of the documentation"
wait "$checks" || status=$?
cat "$checked"
exit "$status"

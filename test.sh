#!/usr/bin/env bash
# All tests, linters and type checks; makes the environments it needs. Usage: bash test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
unset PYTHONPATH

# what is under way in the background ends with this script, however it ends
trap 'jobs -p | xargs -r kill 2>/dev/null || true' EXIT

# the environment that users get, shared by the end-to-end tests, beside that of the tests themselves
bash utils/make_env.sh --driver &
driver=$!
bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test
wait "$driver"

bin="$PWD/.venv-test/bin"

# beside the environment, where nothing but the tests that need them sees them; where that fails, those are skipped
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
installs=()
for name in dreamsim blip_diffusion; do
  install_beside "$name" &
  installs+=($!)
done

mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' '.ci/run')

echo "== shellcheck, shfmt, ruff, mypy"
"$bin/shellcheck" "${scripts[@]}"
"$bin/shfmt" -i 2 -ci -d "${scripts[@]}"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"

echo "== tests"
wait "${installs[@]}"
# the copies of the tree that tests run have this too
"$bin/python" -m compileall -q benchmarks eval_models imageevalkit infer utils
exec "$bin/python" -m pytest -n 2 --dist loadfile "$@"

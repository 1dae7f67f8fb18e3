#!/usr/bin/env bash
# All tests, linters and type checks; makes the environments it needs. Usage: bash test.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
unset PYTHONPATH

# the environment that users get, shared by the end-to-end tests
bash utils/make_env.sh --driver
bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test

bin="$PWD/.venv-test/bin"

# beside the environment, where nothing but the tests that need them sees them; where that fails, those are skipped
for name in dreamsim blip_diffusion; do
  list=requirements/test_$name.txt packages=.venv-test/${name//_/-}-packages
  if ! cmp -s "$list" "$packages/requirements.txt"; then
    rm -rf "$packages"
    if "$bin/python" -m pip --disable-pip-version-check --no-input install -q --no-deps --target "$packages" -r "$list"; then
      cp "$list" "$packages/requirements.txt"
    else
      rm -rf "$packages"
      echo "note: the packages of $list cannot be installed: the tests that need them will be skipped" >&2
    fi
  fi
done

mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' '.ci/run')

echo "== shellcheck, shfmt, ruff, mypy"
"$bin/shellcheck" "${scripts[@]}"
"$bin/shfmt" -i 2 -ci -d "${scripts[@]}"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"

echo "== tests"
exec "$bin/python" -m pytest -n 2 --dist loadfile "$@"

#!/usr/bin/env bash
# Makes .venv and .venv-test from this machine's Python packages and a folder of wheels, without a network:
#   bash tests/gpu/install.sh FOLDER
# tests/gpu/pack.sh fills the folder. PYTHON names the interpreter (python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONPATH PYTHONHOME

fail() {
  echo "error: $1" >&2
  exit 2
}

folder=${1-} python=${PYTHON:-python3}
compgen -G "$folder/*.whl" >/dev/null || fail "--wheels '$folder': the folder has no wheels; bash tests/gpu/pack.sh FOLDER fills it"
# a link is of an earlier call, which may have failed
if [[ -L .venv-test ]]; then rm -rf .venv .venv-test; fi
for path in .venv .venv-test; do
  [[ ! -e $path ]] || fail "$PWD/$path exists: --wheels makes its own; rename or delete $PWD/$path"
done

# first: after a failure the next call recognises its own environment by the link
ln -s .venv .venv-test
# the packages of an interpreter that is a venv itself are not those of the system
"$python" -m venv --without-pip .venv
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
  >"$site/machine.pth"
"$python" -m pip --disable-pip-version-check install -q --no-index --no-deps --no-compile --no-cache-dir \
  --target "$site" "$folder"/*.whl
# as utils/make_env.sh notes that an environment holds this list
sha256sum <<<"$(cat requirements/driver.txt)" | cut -d ' ' -f 1 >.venv/.imageevalkit-requirements

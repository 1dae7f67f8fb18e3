#!/usr/bin/env bash
# Prints the Python of an environment as config.sh names it (see config_defaults.sh): bash utils/env_python.sh ENV
set -euo pipefail
unset CDPATH # makes `cd` print, and go elsewhere

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=utils/config_defaults.sh
. "$repo/utils/config_defaults.sh"

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

[[ $# -eq 1 ]] || fail "usage: bash utils/env_python.sh ENV (one name, path or '')"
environment=$1

config_defaults CONDA_BASE
folder=$(environment_folder "$environment") ||
  fail "environment '$environment' is a name, but CONDA_BASE is not set in config.sh"
case $environment in
  '') hint="run: bash utils/make_env.sh --driver" ;;
  */*) hint="check its path in config.sh" ;;
  *) hint="build it with: bash utils/make_env.sh --model|--benchmark NAME, or check its name and CONDA_BASE in config.sh" ;;
esac

[[ -x $folder/bin/python ]] || fail "environment '$environment' has no $folder/bin/python; $hint"
printf '%s\n' "$folder/bin/python"

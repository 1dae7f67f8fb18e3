#!/usr/bin/env bash
# Prints the Python of an environment as config.sh names it: bash utils/env_python.sh ENV
#   ''     the driver's .venv
#   a/path an environment's folder (relative to the repository root)
#   name   a conda environment: ${CONDA_BASE}/envs/name ('base' is ${CONDA_BASE} itself)
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=utils/config_defaults.sh
. "$repo/utils/config_defaults.sh"

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

[[ $# -eq 1 ]] || fail "usage: bash utils/env_python.sh ENV (one name, path or '')"
environment=$1

case $environment in
  '')
    folder=$repo/.venv
    hint="run: bash utils/make_env.sh --driver"
    ;;
  /*)
    folder=$environment
    hint="check its path in config.sh"
    ;;
  \~/*)
    folder=$HOME/${environment#\~/}
    hint="check its path in config.sh"
    ;;
  */*)
    folder=$repo/$environment
    hint="check its path in config.sh"
    ;;
  *)
    config_defaults CONDA_BASE
    [[ -n ${CONDA_BASE:-} ]] || fail "environment '$environment' is a name, but CONDA_BASE is not set in config.sh"
    folder=$CONDA_BASE/envs/$environment
    [[ $environment != base ]] || folder=$CONDA_BASE
    hint="build it with: bash utils/make_env.sh --model|--benchmark NAME, or check its name and CONDA_BASE in config.sh"
    ;;
esac

[[ -x $folder/bin/python ]] || fail "environment '$environment' has no $folder/bin/python; $hint"
printf '%s\n' "$folder/bin/python"

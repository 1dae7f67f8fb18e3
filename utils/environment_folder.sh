# shellcheck shell=bash
# Sourced by the helpers in this folder. `environment_folder ENV` prints the folder of an environment as config.sh
# names it:
#   ''     the driver's .venv
#   a/path an environment's folder (relative to the repository root)
#   name   a conda environment: ${CONDA_BASE}/envs/name ('base' is ${CONDA_BASE} itself)
# Status 1: ENV is a name, but CONDA_BASE is not set.

environment_folder() {
  local repo
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
  case $1 in
    '') printf '%s\n' "$repo/.venv" ;;
    /*) printf '%s\n' "$1" ;;
    \~/*) printf '%s\n' "$HOME/${1#\~/}" ;;
    */*) printf '%s\n' "$repo/$1" ;;
    *) [[ -n ${CONDA_BASE:-} ]] && if [[ $1 == base ]]; then echo "$CONDA_BASE"; else echo "$CONDA_BASE/envs/$1"; fi ;;
  esac
}

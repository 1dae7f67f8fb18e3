# shellcheck shell=bash
# Sourced by the scripts in this folder. `config_defaults NAME…` sets and exports each NAME as eval.sh does, so that
# these scripts use the same folders. Config files override the environment, except for keys, tokens and their
# endpoints. An empty NAME is unset. A subshell reads the files, so no other variable of them is set.

unset CDPATH # makes `cd` print, and go elsewhere
config_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Editors on Windows add a byte order mark, and CR at the ends of lines, which would become part of each value.
# `is_unix_text FILE`: FILE has neither. `unix_text FILE` prints FILE without them.
is_unix_text() {
  [[ $(<"$1")$'\n' != *$'\r\n'* && $(<"$1") != $'\xef\xbb\xbf'* ]]
}

unix_text() {
  local text
  text=$(<"$1")$'\n'
  text=${text#$'\xef\xbb\xbf'}
  printf '%s' "${text//$'\r\n'/$'\n'}"
}

config_defaults() {
  local setting name
  while IFS= read -r -d '' setting; do
    name=${setting%%=*}
    if [[ -n ${setting#*=} ]]; then export "${setting?}"; else unset "$name"; fi
  done < <(
    set +eu
    declare -A given=()
    for name in API_KEY BASE_URL AZURE_OPENAI_ENDPOINT OPENAI_API_VERSION OPENAI_ORG_ID OPENAI_PROJECT_ID \
      OPENAI_CUSTOM_HEADERS HF_TOKEN HF_ENDPOINT; do
      given[$name]=${!name}
    done
    for file in config.sh config.local.sh; do
      # shellcheck source=/dev/null
      [[ ! -f $config_root/$file ]] || . <(unix_text "$config_root/$file") >/dev/null
    done
    for name; do
      printf '%s=%s\0' "$name" "${given[$name]:-${!name}}"
    done
  )
}

# `config_map MAP [FILE]` prints the names and values of a map of the config files (or of FILE alone), each with a NUL
# after it.
config_map() {
  (
    set +eu
    for file in "${2:-$config_root/config.sh}" ${2:-"$config_root/config.local.sh"}; do
      # shellcheck source=/dev/null
      [[ ! -f $file ]] || . <(unix_text "$file") >/dev/null
    done
    declare -n map=$1
    for name in "${!map[@]}"; do printf '%s\0%s\0' "$name" "${map[$name]}"; done
  )
}

# `environment_folder ENV` prints the folder of an environment as config.sh names it:
#   ''     the driver's .venv
#   a/path an environment's folder (relative to the repository root)
#   name   a conda environment: ${CONDA_BASE}/envs/name ('base' is ${CONDA_BASE} itself)
# Status 1: ENV is a name, but CONDA_BASE is not set.
environment_folder() {
  case $1 in
    '') printf '%s\n' "$config_root/.venv" ;;
    /*) printf '%s\n' "$1" ;;
    \~/*) printf '%s\n' "$HOME/${1#\~/}" ;;
    */*) printf '%s\n' "$config_root/$1" ;;
    *) [[ -n ${CONDA_BASE:-} ]] && if [[ $1 == base ]]; then echo "$CONDA_BASE"; else echo "$CONDA_BASE/envs/$1"; fi ;;
  esac
}

# shellcheck shell=bash
# Sourced by the helpers in this folder: `config_defaults NAME…` sets and exports each NAME as eval.sh does, so
# that a helper run by hand works on the same folders. The config files win, except for keys, tokens and the
# endpoints they belong to: there the environment does. A NAME that is empty in the end is unset.
# A subshell reads the files: nothing else in them reaches the helper.

config_defaults() {
  local repo setting name
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
  while IFS= read -r -d '' setting; do
    name=${setting%%=*}
    if [[ -n ${setting#*=} ]]; then export "${setting?}"; else unset "$name"; fi
  done < <(
    set +eu
    declare -A given=()
    for name in API_KEY BASE_URL HF_TOKEN HF_ENDPOINT; do given[$name]=${!name}; done
    for file in config.sh config.local.sh; do
      # shellcheck source=/dev/null
      [[ ! -f $repo/$file ]] || . "$repo/$file" >/dev/null
    done
    for name; do
      printf '%s=%s\0' "$name" "${given[$name]:-${!name}}"
    done
  )
}

# `config_map MAP [FILE]` prints the names and values of a map of config.sh, NUL after each: as the config files leave
# it, or as FILE alone does.
config_map() {
  local repo
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
  (
    set +eu
    for file in "${2:-$repo/config.sh}" ${2:-"$repo/config.local.sh"}; do
      # shellcheck source=/dev/null
      [[ ! -f $file ]] || . "$file" >/dev/null
    done
    declare -n map=$1
    for name in "${!map[@]}"; do printf '%s\0%s\0' "$name" "${map[$name]}"; done
  )
}

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

# shellcheck shell=bash
# Sourced by the helpers in this folder: `config_defaults NAME…` exports each NAME that the environment leaves
# unset or empty as config.sh and config.local.sh set it, so that a helper run by hand works on the same
# folders as eval.sh. A subshell reads the files: nothing else in them reaches the helper.

config_defaults() {
  local repo setting name
  repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return
  while IFS= read -r -d '' setting; do
    name=${setting%%=*}
    [[ -n ${!name:-} ]] || export "${setting?}"
  done < <(
    set +eu
    for file in config.sh config.local.sh; do
      # shellcheck source=/dev/null
      [[ ! -f $repo/$file ]] || . "$repo/$file" >/dev/null
    done
    for name; do
      [[ -z ${!name} ]] || printf '%s=%s\0' "$name" "${!name}"
    done
  )
}

#!/usr/bin/env bash
# The driver: reads config.sh, makes the driver's environment, and starts imageevalkit.cli with the user's options.
set -euo pipefail

if ((BASH_VERSINFO[0] < 5)) && [[ $BASH_VERSION != 4.[3-9]* ]]; then
  echo "error: bash $BASH_VERSION is too old for config.sh's maps; bash 4.3 or newer is needed" >&2
  exit 2
fi

case ${1-} in
  env) exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/utils/make_env.sh" "${@:2}" ;;
  prefetch) set -- --prefetch "${@:2}" ;;
esac

unset PYTHONHOME # it belongs to another Python, and ours would not start
REPO="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)"
if [[ ${1-} == --prefetch && ! -d $REPO/imageevalkit/extras/prefetch ]]; then
  echo "error: prefetch: this checkout has no imageevalkit/extras/prefetch; restore the folder" >&2
  exit 2
fi
# shellcheck source=utils/config_defaults.sh
. "$REPO/utils/config_defaults.sh"
if [[ $REPO == *:* ]]; then
  echo "error: $REPO holds a ':', which PYTHONPATH splits at; move the toolkit to another folder" >&2
  exit 2
fi

# The environment overrides config files for these: keys, tokens and their endpoints. utils/config_defaults.sh has the
# same list.
ENVIRONMENT_FIRST=(API_KEY BASE_URL AZURE_OPENAI_ENDPOINT OPENAI_API_VERSION OPENAI_ORG_ID OPENAI_PROJECT_ID
  OPENAI_CUSTOM_HEADERS HF_TOKEN HF_ENDPOINT)
EXPORTED=("${ENVIRONMENT_FIRST[@]}"
  CONDA_BASE CUDA_BASE TORCH_HOME HF_HOME TRANSFORMERS_CACHE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE)

# Prints every variable in capitals, NUL-separated: kind, name, count, values. The last word is "end": without it the
# dump was cut short. Secrets are left out; jobs get them through the environment.
dump_config() {
  local kind name key
  while read -r kind name; do
    case $name in *API_KEY | *TOKEN | *SECRET | *PASSWORD | OPENAI_CUSTOM_HEADERS) continue ;; esac
    case $kind in
      *a*)
        local -n array="$name"
        printf '%s\0' array "$name" "${#array[@]}"
        if ((${#array[@]})); then printf '%s\0' "${array[@]}"; fi
        unset -n array
        ;;
      *A*)
        local -n map="$name"
        printf '%s\0' map "$name" "$((2 * ${#map[@]}))"
        for key in "${!map[@]}"; do printf '%s\0' "$key" "${map[$key]}"; done
        unset -n map
        ;;
      *) printf '%s\0' scalar "$name" 1 "${!name-}" ;;
    esac
  done < <(declare -p | sed -nE 's/^declare (-[^ ]+) ([A-Z][A-Z0-9_]*)(=.*)?$/\1 \2/p')
  printf 'end\0'
}

# Prints a Python for --help and for errors of options, before the driver's environment exists.
find_python() {
  local candidate found
  for candidate in "${PYTHON:-}" python3 python3.12 python3.11 python3.13; do
    [[ -n $candidate ]] || continue
    # its own path: the stub of a version manager takes a tenth of a second to find it
    found=$("$candidate" -ISc 'import sys; print(sys.executable); sys.exit(sys.version_info < (3, 11))' 2>/dev/null) || continue
    printf '%s\n' "$found"
    return
  done
  echo "error: no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3 bash eval.sh …" >&2
  return 2
}

OUR_PATHS="$REPO:$REPO/infer"
# every file of a run is UTF-8, in every locale
export PYTHONUTF8=1

DRIVER=$REPO/.venv/bin/python
asks_help=''
for word; do case $word in -h | --help | --help=*) asks_help=1 ;; esac done
if [[ -n $asks_help || ! -x $DRIVER ]]; then
  # -P: the user's working folder must not shadow our packages or the standard library
  python=$DRIVER
  [[ -x $DRIVER ]] || python=$(find_python)
  PYTHONPATH=$OUR_PATHS "$python" -P -m imageevalkit.cli.command_line "$@"
  [[ -z $asks_help ]] || exit 0
fi

# A model with its own gateway names the variable of its key, which must end in _API_KEY.
declare -A given=()
for name in $(compgen -v | grep '_API_KEY$' || :); do ENVIRONMENT_FIRST+=("$name"); done
for name in "${ENVIRONMENT_FIRST[@]}"; do given[$name]="${!name-}"; done

# Sourced outside of a function: in a function, a user's plain `declare` would make a local variable.
for file in "$REPO/config.sh" "$REPO/config.local.sh"; do
  [[ -e $file ]] || continue
  is_unix=1
  is_unix_text "$file" || is_unix=''
  if ! if [[ $is_unix ]]; then bash -n "$file"; else bash -n <(unix_text "$file"); fi; then
    echo "error: $file has a syntax error (see the line above)" >&2
    exit 2
  fi
  set +eu # a user's file need not be written for strict mode
  trap 'echo "error: $file ends the run: it calls exit (or is stopped by a command of its own)" >&2; exit 2' EXIT
  # shellcheck source=config.sh disable=SC1091
  if [[ $is_unix ]]; then source "$file"; else source <(unix_text "$file"); fi
  trap - EXIT
  set -eu
done

for name in "${ENVIRONMENT_FIRST[@]}"; do
  if [[ -n ${given[$name]} ]]; then printf -v "$name" '%s' "${given[$name]}"; fi
done
for name in $(compgen -v | grep '_API_KEY$' || :); do EXPORTED+=("$name"); done
for name in "${EXPORTED[@]}"; do
  # an empty HF_ENDPOINT or HF_HOME would not mean "default" to the libraries that read it
  if [[ -n ${!name-} ]]; then export "${name?}"; else unset "$name"; fi
done

# ONNX Runtime (for OCR, and imported by diffusers), vLLM and Hugging Face's libraries would send usage data, even on
# machines without internet
export ORT_DISABLE_TELEMETRY=1 DO_NOT_TRACK=1
status=0
bash "$REPO/utils/make_env.sh" --driver || status=$?
if ((status > 128)); then exit "$status"; fi # interrupted
if ((status)); then
  echo "error: the driver's environment $REPO/.venv cannot be made (see above)" >&2
  exit 2
fi
if [[ -n ${PYTHONPATH:-} ]]; then
  PYTHONPATH=$("$DRIVER" -IS "$REPO/imageevalkit/common/python_path.py" "$DRIVER")
fi
export PYTHONPATH="$OUR_PATHS${PYTHONPATH:+:$PYTHONPATH}"
# exec: the launcher replaces this process and gets Ctrl-C and SIGTERM; its exit status is the command's
exec 3< <(dump_config)
# utils/prefetch.sh reads the same configuration
program=cli
if [[ ${1-} == --prefetch ]]; then
  program=extras.prefetch
  shift
fi
exec "$DRIVER" -P -m "imageevalkit.$program" --config-fd 3 "$@"

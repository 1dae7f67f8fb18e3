#!/usr/bin/env bash
# The driver: configuration from config.sh, options from the command line, one plan, one launch.
# Everything that decides lives in imageevalkit/launch; this file only reads bash configuration.
set -euo pipefail

if ((BASH_VERSINFO[0] < 5)) && [[ $BASH_VERSION != 4.[3-9]* ]]; then
  echo "error: bash $BASH_VERSION is too old for config.sh's maps; bash 4.3 or newer is needed" >&2
  exit 2
fi

REPO="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)"
if [[ $REPO == *:* ]]; then
  echo "error: $REPO holds a ':', which PYTHONPATH splits at; move the toolkit to another folder" >&2
  exit 2
fi

# The environment wins over config files for these: keys, tokens and the endpoints they belong to.
ENVIRONMENT_FIRST=(API_KEY BASE_URL HF_TOKEN HF_ENDPOINT)
EXPORTED=(API_KEY BASE_URL HF_TOKEN HF_ENDPOINT CONDA_BASE CUDA_BASE TORCH_HOME HF_HOME TRANSFORMERS_CACHE
  HF_HUB_OFFLINE TRANSFORMERS_OFFLINE)
SCALARS=(USE_API NUM_WORKERS REQUESTS_PER_MINUTE MAX_COST PARALLEL REPLICAS GPU_MIN_FREE_MEMORY SHARE_GPUS
  ENABLE_INFER ENABLE_EVAL GENERATE_BLANK_IMAGE_ON_ERROR MISSING_ITEMS PROMPT_REWRITER CONDA_BASE)
ARRAYS=(DS_NAMES MODEL_NAMES CUSTOM_MODEL_KWARGSES)
MAPS=(INFER_ENV_MAP INFER_GPU_MAP EVAL_ENV_MAP EVAL_GPU_MAP JUDGE_MAP JUDGE_KWARGS_MAP DS_KWARGS_MAP
  REWRITER_KWARGS_MAP)

# NUL-separated: kind, name, count, values; "end" last, so that a dump cut short is noticed.
# Secrets are not in it, they travel in the environment.
dump_config() {
  local name key
  for name in "${SCALARS[@]}"; do printf '%s\0' scalar "$name" 1 "${!name-}"; done
  for name in "${ARRAYS[@]}"; do
    local -n array="$name"
    printf '%s\0' array "$name" "${#array[@]}"
    if ((${#array[@]})); then printf '%s\0' "${array[@]}"; fi
    unset -n array
  done
  for name in "${MAPS[@]}"; do
    local -n map="$name"
    printf '%s\0' map "$name" "$((2 * ${#map[@]}))"
    for key in "${!map[@]}"; do printf '%s\0' "$key" "${map[$key]}"; done
    unset -n map
  done
  printf 'end\0'
}

find_python() {
  local candidate
  for candidate in "$REPO/.venv/bin/python" "${PYTHON:-}" python3.12 python3.11 python3.13 python3; do
    [[ -n $candidate ]] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "error: no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3 bash eval.sh …" >&2
  return 2
}

# A model with a gateway of its own names the variable of its key: any that ends in _API_KEY will do.
declare -A given=()
for name in $(compgen -v | grep '_API_KEY$' || :); do ENVIRONMENT_FIRST+=("$name"); done
for name in "${ENVIRONMENT_FIRST[@]}"; do given[$name]="${!name-}"; done

# Sourced here and not in a function, where a user's plain `declare` would make a local variable.
for file in "$REPO/config.sh" "$REPO/config.local.sh"; do
  [[ -e $file ]] || continue
  if ! bash -n "$file"; then
    echo "error: $file has a syntax error (see the line above)" >&2
    exit 2
  fi
  set +eu # a user's file need not be written for strict mode
  trap 'echo "error: $file ends the run: it calls exit (or is stopped by a command of its own)" >&2; exit 2' EXIT
  # shellcheck source=config.sh disable=SC1091
  source "$file"
  trap - EXIT
  set -eu
done

# a name that a config file unset is empty, not an error in the middle of the dump
for name in "${ARRAYS[@]}"; do declare -p "$name" &>/dev/null || declare -a "$name=()"; done
for name in "${MAPS[@]}"; do declare -p "$name" &>/dev/null || declare -A "$name=()"; done
for name in "${ENVIRONMENT_FIRST[@]}"; do
  if [[ -n ${given[$name]} ]]; then printf -v "$name" '%s' "${given[$name]}"; fi
done
for name in $(compgen -v | grep '_API_KEY$' || :); do EXPORTED+=("$name"); done
for name in "${EXPORTED[@]}"; do
  # an empty HF_ENDPOINT or HF_HOME would not mean "default" to the libraries that read it
  if [[ -n ${!name-} ]]; then export "${name?}"; else unset "$name"; fi
done

PYTHON_OF_DRIVER="$(find_python)"
export PYTHONPATH="$REPO:$REPO/infer${PYTHONPATH:+:$PYTHONPATH}"
# every file of a run is UTF-8, whatever the locale
export PYTHONUTF8=1
# ONNX Runtime (which reads text, and which diffusers imports), vLLM and Hugging Face's libraries would report to their
# makers, where there is no internet too
export ORT_DISABLE_TELEMETRY=1 DO_NOT_TRACK=1
# exec: the launcher becomes this process, so that Ctrl-C, SIGTERM and its exit status are the launcher's own
exec 3< <(dump_config)
# utils/prefetch.sh reads the same configuration
program=launch
if [[ ${1-} == --prefetch ]]; then
  program=prefetch
  shift
fi
# -P: the user's working folder must not shadow our packages or the standard library
exec "$PYTHON_OF_DRIVER" -P -m "imageevalkit.$program" --config-fd 3 "$@"

#!/usr/bin/env bash
# Scores one model's images with one benchmark:
#   bash utils/evaluate.sh MODEL_NAME EVAL_ENV BENCHMARK
#   bash eval/<benchmark>.sh MODEL_NAME EVAL_ENV         a link to this script
set -euo pipefail
name="$(basename "${BASH_SOURCE[0]}" .sh)"
usage="bash eval/$name.sh MODEL_NAME EVAL_ENV"
if [[ $name == evaluate ]]; then
  name=${3-} usage="bash utils/evaluate.sh MODEL_NAME EVAL_ENV BENCHMARK"
  set -- "${@:1:2}"
fi
if [[ -z $name || $# -lt 1 || $# -gt 2 ]]; then
  echo "error: usage: $usage" >&2
  exit 2
fi
unset CDPATH PYTHONHOME
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(bash utils/env_python.sh "${2-}")"
if [[ -n ${PYTHONPATH:-} ]]; then
  PYTHONPATH=$("$python" -IS imageevalkit/common/python_path.py "$python")
fi
export PYTHONPATH="$PWD:$PWD/infer${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m imageevalkit.evaluate --ds_name "$name" --model_name="$1"

#!/usr/bin/env bash
# Scores one model's images with the benchmark whose name the link to this script has:
# bash eval/<benchmark>.sh MODEL_NAME EVAL_ENV
set -euo pipefail
name="$(basename "${BASH_SOURCE[0]}" .sh)"
if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "error: usage: bash eval/$name.sh MODEL_NAME EVAL_ENV" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(bash utils/env_python.sh "${2-}")"
export PYTHONPATH="$PWD:$PWD/infer${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m imageevalkit.evaluation --ds_name "$name" --model_name="$1"

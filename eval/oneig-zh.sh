#!/usr/bin/env bash
# Scores one model's images: bash eval/oneig-zh.sh MODEL_NAME EVAL_ENV
set -euo pipefail
if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "error: usage: bash eval/oneig-zh.sh MODEL_NAME EVAL_ENV" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(bash utils/env_python.sh "${2-}")"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m imageevalkit.evaluation --ds_name oneig-zh --model_name="$1"

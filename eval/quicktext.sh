#!/usr/bin/env bash
# Usage: bash eval/quicktext.sh MODEL_NAME EVAL_ENV
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$(bash utils/env_python.sh "${2-}")"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m imageevalkit.evaluation --ds_name quicktext --model_name "$1"

#!/usr/bin/env bash
# Gets and verifies the files that benchmarks need: bash utils/prefetch.sh --help
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$repo/utils/make_env.sh" --driver
# shellcheck source=utils/config_defaults.sh
. "$repo/utils/config_defaults.sh"
config_defaults HF_HOME HF_ENDPOINT HF_TOKEN
# -P: a file in the user's folder must not shadow a module
PYTHONPATH=$repo exec "$repo/.venv/bin/python" -P -m imageevalkit.prefetch "$@"

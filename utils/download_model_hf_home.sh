#!/usr/bin/env bash
# Downloads Hugging Face repositories into HF_HOME/hub, which can be copied to nodes without internet:
#   bash utils/download_model_hf_home.sh org/name [org/name…] [--repo-type model|dataset] [--revision R] [--include P]
# HF_HOME, HF_ENDPOINT and HF_TOKEN come from the environment or the config files; the token is never an argument.
set -euo pipefail
unset CDPATH PYTHONHOME # CDPATH makes `cd` print, and go elsewhere

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$repo/utils/make_env.sh" --driver
# shellcheck source=utils/config_defaults.sh
. "$repo/utils/config_defaults.sh"
config_defaults HF_HOME HF_ENDPOINT HF_TOKEN
# -P: a file in the user's folder must not shadow a module
PYTHONPATH=$repo exec "$repo/.venv/bin/python" -P -m imageevalkit.assets.hub "$@"

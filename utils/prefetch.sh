#!/usr/bin/env bash
# Gets and verifies what models and benchmarks need from outside: bash utils/prefetch.sh --help
set -euo pipefail
unset CDPATH # makes `cd` print, and go elsewhere

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# the configuration is read as for a run, so that both mean the same models, judges and folders
exec bash "$repo/eval.sh" --prefetch "$@"

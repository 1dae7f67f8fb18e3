#!/usr/bin/env bash
# Downloads and verifies the files of models and benchmarks: bash utils/prefetch.sh --help
set -euo pipefail
unset CDPATH # makes `cd` print, and go elsewhere

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# eval.sh reads the configuration, so that prefetch uses the same models, judges and folders as a run
exec bash "$repo/eval.sh" --prefetch "$@"

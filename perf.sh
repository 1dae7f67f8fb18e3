#!/usr/bin/env bash
# Measures speed as ratios, each against a bar.
#   bash perf.sh [NAME…]    the programs of these names; without names, all
#   bash perf.sh --list     the names of the programs
set -euo pipefail
for word; do
  case $word in -h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
    exit
    ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")"
unset PYTHONPATH PYTHONDONTWRITEBYTECODE

programs=(api_generation api_judging launcher matrix report adoption)

if [[ ${1-} == --list ]]; then
  for name in "${programs[@]}"; do
    printf '%-18s%s\n' "$name" "$(sed -n '1s/^"""\(.*\)$/\1/p' "perf/$name.py")"
  done
  exit
fi
chosen=("$@")
((${#chosen[@]})) || chosen=("${programs[@]}")
for name in "${chosen[@]}"; do
  if [[ " ${programs[*]} " != *" $name "* ]]; then
    echo "error: no program '$name': use ${programs[*]}" >&2
    exit 2
  fi
done

# the users' environment, and beside it the packages of the programs: torch, diffusers, transformers
bash utils/make_env.sh --driver
bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test

kept=() missed=()
for name in "${chosen[@]}"; do
  echo "== $name"
  if .venv-test/bin/python -m "perf.$name"; then kept+=("$name"); else missed+=("$name"); fi
done
echo "== ${#kept[@]} of ${#chosen[@]} keep their bars: ${kept[*]:-none}; missed: ${missed[*]:-none}"
((${#missed[@]} == 0))

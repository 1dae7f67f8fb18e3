# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by make_env.sh: from the name of a model, benchmark or judge to its environment and its list.

# `find_list KIND NAME` sets
#   list         a file below requirements/; empty: NAME runs in the driver's environment
#   environment  as config.sh names it; empty: it has none for NAME
#   map, entry   where config.sh does: INFER_ENV_MAP[NAME], EVAL_ENV_MAP[NAME or what several benchmarks share]
# A list is named after the environment, or after NAME. Where neither is one, config.local.sh has given NAME another
# environment, and the list is that of the environment in config.sh.
find_list() {
  local kind=$1 name=$2 candidate
  local -A lists=() configured=() shipped=()
  map=EVAL_ENV_MAP entry=$name
  [[ $kind != model ]] || map=INFER_ENV_MAP
  read_map configured < <(config_map "$map")
  read_map shipped < <(config_map "$map" "$repo/config.sh")
  read_lists

  list='' environment=${configured[$name]-}
  if [[ $kind == model && -n ${configured[$name]+known} && -z $environment ]]; then return; fi
  if [[ $kind == benchmark && -z $environment && -n ${lists[$name]-} ]]; then share_environment; fi
  [[ $environment != *' '* ]] ||
    fail "$kind '$name' runs in several environments ($environment): build each from its list, with --path DIR"
  for candidate in "$environment" "$name" "${shipped[$entry]-}"; do
    [[ -z $candidate ]] || list=${lists[$candidate]-}
    [[ -z $list ]] || return 0
  done
  [[ -z $environment ]] || no_list
  [[ -n ${configured[$name]+known} ]] || is_benchmark || no_list
}

# Most benchmarks need no entry in a map: a script is enough, or a class with that name, in the file of another one too.
is_benchmark() {
  [[ $kind == benchmark ]] || return
  [[ -e $repo/eval/$name.sh ]] || grep -qsF -e "\"$name\"" -e "'$name'" "$repo"/benchmarks/*/benchmark.py
}

# Fills lists, by name. A benchmark may run in a judge's environment, too.
read_lists() {
  local folder file
  local -a folders=("$repo/requirements/$kind")
  [[ $kind != benchmark ]] || folders=("$repo/requirements/judge" "$repo/requirements/benchmark"/*)
  for folder in "${folders[@]}"; do
    for file in "$folder"/*.txt; do
      [[ ! -f $file ]] || lists["$(basename "$file" .txt)"]=$file
    done
  done
}

# What several benchmarks share (the environment of their image encoders) stands under a name of its own.
share_environment() {
  local key shared
  for key in "${!shipped[@]}"; do
    shared=${lists[${shipped[$key]:-/}]-}
    if [[ -n $shared && $(packages_of "$shared") == "$(packages_of "${lists[$name]}")" ]]; then
      entry=$key environment=${configured[$key]-}
      return
    fi
  done
}

no_list() {
  local known
  local -a names=("${!lists[@]}")
  # EVAL_ENV_MAP has benchmarks and judges
  [[ $kind != model ]] || names+=("${!configured[@]}")
  known=$(printf '%s\n' "${!lists[@]}" | sort | paste -s -d ' ')
  [[ -z $environment ]] ||
    fail "no list is named after environment '$environment' of $kind '$name'; say which it is to hold: bash utils/make_env.sh --$kind LIST --path DIR (lists: $known)"
  fail "unknown $kind '$name'$(suggestion "$name" "${names[@]}"): neither $map in config.sh nor requirements/$kind has it (lists: $known)"
}

# The packages of a list and of those it includes, a line each.
packages_of() {
  closure "$1" | sed -n 's/[[:space:]]*#.*//;/./p' | sort -u
}

# `read_map MAP` fills MAP with the names and values that config_map prints.
read_map() {
  declare -n _map=$1
  local key value
  while IFS= read -r -d '' key && IFS= read -r -d '' value; do _map["$key"]=$value; done
}

# `suggestion NAME KNOWN…` prints " (did you mean 'x'?)" or nothing; nothing, too, where there is no Python to ask.
suggestion() {
  local candidate
  for candidate in "$repo/.venv/bin/python" "${PYTHON:-python3}" python3.12 python3.11; do
    PYTHONPATH=$repo "$candidate" -c 'import sys; from imageevalkit.errors import suggest
print(suggest(sys.argv[1], sys.argv[2:]))' "$@" 2>/dev/null && return
  done
  return 0
}

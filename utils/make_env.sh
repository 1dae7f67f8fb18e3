#!/usr/bin/env bash
# Builds an environment from the lists in requirements/, or brings it up to date when its list has changed:
#   bash eval.sh env --driver                          .venv, for the driver
#   bash eval.sh env --model NAME [--path DIR]         requirements/model/ENVIRONMENT.txt
#   bash eval.sh env --benchmark NAME [--path DIR]     requirements/benchmark/*/ENVIRONMENT.txt, or one for several
#   bash eval.sh env --judge NAME [--path DIR]         requirements/judge/ENVIRONMENT.txt
#   bash eval.sh env --requirements FILE --path DIR    any list
# NAME has an environment in INFER_ENV_MAP or EVAL_ENV_MAP of config.sh, or is the name of a list. Without --path the
# environment goes to its path in config.sh, or to ${CONDA_BASE}/envs/ENVIRONMENT. mamba, conda or micromamba makes it
# if one is installed; otherwise it is a venv. A list's line "# python: 3.10" sets its Python (default: 3.12). An
# up-to-date environment stays unchanged. PYTHON names the interpreter of a venv, conda or not.
set -euo pipefail
# CDPATH makes `cd` print, and go elsewhere. pip counts packages on PYTHONPATH as installed, and packages of another
# Python break it.
unset CDPATH PYTHONPATH PYTHONHOME
# a pip.conf with "user = true" is refused in a venv, and would install beside a conda environment
export PIP_USER=0

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=utils/config_defaults.sh
. "$repo/utils/config_defaults.sh"

# A file in each environment: the hash of its list, "building", or "installed" (all packages are installed, but may not
# import). The hash is written last, so that an environment of a killed build never looks complete.
stamp_name=.imageevalkit-requirements

fail() {
  printf 'error: %s\n' "$1" >&2
  exit "${2:-2}"
}

check_tools() {
  local tool missing=''
  for tool in flock setsid sha256sum; do
    command -v "$tool" >/dev/null || missing+="${missing:+ and }$tool"
  done
  [[ -z $missing ]] || fail "make_env.sh needs $missing (Debian: apt install util-linux coreutils)"
}

parse_options() {
  driver='' kind='' name='' list='' path=''
  while [[ $# -gt 0 ]]; do
    case $1 in
      --driver) driver=1 ;;
      --model | --benchmark | --judge | --requirements | --path)
        [[ -n ${2:-} && ${2:-} != --* ]] || fail "$1 needs a value"
        case $1 in
          --path) path=$2 ;;
          --requirements) list=$2 ;;
          *) kind=${1#--} name=$2 ;;
        esac
        shift
        ;;
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      *) fail "unknown option '$1' (see bash utils/make_env.sh --help)" ;;
    esac
    shift
  done
  local wanted=0
  for choice in "$driver" "$kind" "$list"; do
    [[ -z $choice ]] || wanted=$((wanted + 1))
  done
  [[ $wanted -eq 1 ]] || fail "say one of --driver, --model NAME, --benchmark NAME, --judge NAME, --requirements FILE"
}

# Finds the environment and the list of a model, benchmark or judge. `find_list KIND NAME` sets
#   list         a file below requirements/; empty: NAME runs in the driver's environment
#   environment  as config.sh names it; empty: it has none for NAME
#   map, entry   where config.sh does: INFER_ENV_MAP[NAME], EVAL_ENV_MAP[NAME or what several benchmarks share]
#   folder       the name of an environment's folder that config.sh does not name
# A list is named after the environment, or after NAME. If there is no such list, config.local.sh has given NAME another
# environment: then the list is named after the environment in config.sh.
find_list() {
  local kind=$1 name=$2
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
  for folder in "$environment" "$name" "${shipped[$entry]-}"; do
    [[ -z $folder ]] || list=${lists[$folder]-}
    [[ -z $list ]] || return 0
  done
  [[ -z $environment ]] || no_list
  [[ -n ${configured[$name]+known} ]] || is_benchmark || no_list
}

# Most benchmarks need no entry in a map: a script is enough, or a class with that name in any benchmark's file.
is_benchmark() {
  [[ $kind == benchmark ]] || return
  [[ -e $repo/eval/$name.sh ]] || grep -qsF -e "\"$name\"" -e "'$name'" "$repo"/benchmarks/*/benchmark.py
}

# Fills lists by name: the file's name, and the names in its line "# also for: NAME…". A benchmark may run in a judge's
# environment, too.
read_lists() {
  local folder file line other
  local -a folders=("$repo/requirements/$kind")
  [[ $kind != benchmark ]] || folders=("$repo/requirements/judge" "$repo/requirements/benchmark"/*)
  for folder in "${folders[@]}"; do
    for file in "$folder"/*.txt; do
      [[ -f $file ]] || continue
      lists["$(basename "$file" .txt)"]=$file
      while read -r line; do
        [[ $line == '# also for: '* ]] || continue
        for other in ${line#*: }; do : "${lists[$other]:=$file}"; done
      done <"$file"
    done
  done
}

# The environment of image encoders, which several benchmarks share, has its own name.
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

# Prints the packages of a list and of the lists that it includes, a line each.
packages_of() {
  closure "$1" | sed -n 's/[[:space:]]*#.*//;/./p' | sort -u
}

# `read_map MAP` fills MAP with the names and values that config_map prints.
read_map() {
  declare -n _map=$1
  local key value
  while IFS= read -r -d '' key && IFS= read -r -d '' value; do _map["$key"]=$value; done
}

# `suggestion NAME KNOWN…` prints " (did you mean 'x'?)" or nothing. It prints nothing if no Python is installed.
suggestion() {
  local candidate
  for candidate in "$repo/.venv/bin/python" "${PYTHON:-python3}" python3.12 python3.11; do
    PYTHONPATH=$repo "$candidate" -c 'import sys; from imageevalkit.common.errors import suggest
print(suggest(sys.argv[1], sys.argv[2:]))' "$@" 2>/dev/null && return
  done
  return 0
}

# `find_conda` sets conda to the first one that runs: below CONDA_BASE, on PATH, or in a variable of a shell hook. If
# none runs, conda is empty.
find_conda() {
  local -a candidates=(mamba conda micromamba "${CONDA_EXE:-}" "${MAMBA_EXE:-}")
  [[ -z ${CONDA_BASE:-} ]] || candidates=("$CONDA_BASE"/{bin,condabin}/{mamba,conda,micromamba} "${candidates[@]}")
  for conda in "${candidates[@]}"; do
    # a stub of a version manager has the name, but fails
    if [[ -n $conda ]] && "$conda" --version >/dev/null 2>&1; then return; fi
  done
  conda=''
}

# Prints the folder of conda's base environment, which contains its environments. Status 1: there is no conda, or it
# prints no folder.
conda_base() {
  [[ -n $conda ]] || return
  # conda and mamba 1 call it root_prefix, mamba 2 and micromamba base environment
  "$conda" info --json 2>/dev/null | sed -nE '/"(root_prefix|base environment)"/{s/.*: *"([^"]*)".*/\1/p;q;}' | grep .
}

# Sets list (the requirements file), path (the environment's folder) and name (for the log).
resolve() {
  conda=''
  config_defaults CONDA_BASE
  if [[ -n $driver ]]; then
    list=$repo/requirements/driver.txt path=${path:-$repo/.venv}
  elif [[ -n $list ]]; then
    [[ -f $list ]] || fail "there is no requirements file $list"
    [[ -n $path ]] || fail "--requirements needs --path DIR"
  else
    find_list "$kind" "$name"
    if [[ -z $list ]]; then
      echo "nothing to build: $kind '$name' runs in the driver's environment, which eval.sh makes" >&2
      exit 0
    fi
    [[ -n $path ]] || find_place
  fi
  name=$(basename "$list" .txt)
  [[ $path == /* ]] || path=$PWD/$path
}

# Sets path to the folder in which config.sh expects the environment. If CONDA_BASE is empty, sets it to the folder of the
# conda on PATH.
find_place() {
  folder=${environment:-$folder}
  if ! path=$(environment_folder "$folder"); then
    [[ -n ${PYTHON:-} ]] || find_conda
    CONDA_BASE=$(conda_base) || fail "set CONDA_BASE in config.sh or give --path DIR"
    path=$(environment_folder "$folder")
    echo "CONDA_BASE is not set: $path is of $conda; eval.sh finds it with CONDA_BASE=$CONDA_BASE in config.local.sh" >&2
  fi
}

# Prints the entry that makes a run use the environment, unless config.sh has it already.
say_how_it_is_found() {
  local value=$path
  [[ -n $kind && $(environment_folder "$environment") != "$path" ]] || return 0
  [[ $path != "${CONDA_BASE:-/}/envs/$folder" ]] || value=$folder
  echo "to run $entry in it, set ${map}['$entry']='$value' in config.local.sh" >&2
}

# Prints the lines of a requirements file and of the files that it includes.
closure() {
  local line
  # shellcheck disable=SC2094  # the function reads another file than its caller
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line =~ ^[[:space:]]*(-r|-c|--requirement|--constraint)[[:space:]=]+([^[:space:]]+) ]]; then
      closure "$(dirname "$1")/${BASH_REMATCH[2]}"
    else
      printf '%s\n' "$line"
    fi
  done <"$1"
}

# Sets wanted (the list's own Python, '' for any that the toolkit runs on).
read_python() {
  wanted=$(sed -nE 's/^#[[:space:]]*python:[[:space:]]*//p' <<<"$lines" | head -n 1)
  [[ -z $wanted || $wanted =~ ^3\.[0-9]+$ ]] || fail "$shown_list: '# python: $wanted' names no Python like 3.10"
}

# A stub of a version manager has the name, but fails: so the program is run.
suits() {
  "$1" -c 'import sys
wanted = sys.argv[1]
sys.exit(sys.version_info < (3, 11) if not wanted else wanted != "%d.%d" % sys.version_info[:2])' "$wanted" >/dev/null 2>&1
}

find_python() {
  local candidate found=''
  # 3.12 first: the newest that every package of the lists declares to support
  local -a candidates=(python3.12 python3.11 python3.13 python3)
  [[ -z $wanted ]] || candidates=("python$wanted" python3)
  [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    suits "$candidate" || continue
    found=$candidate
    if "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  [[ -z $found ]] || fail "$found has no venv module; install it (Debian, Ubuntu: apt install python${wanted:-3}-venv)"
  [[ -z $wanted ]] ||
    fail "$shown_list needs Python $wanted, and there is none${PYTHON:+ (PYTHON=$PYTHON)}; install it, set PYTHON to its path, or set CONDA_BASE to a conda installation, which brings it"
  fail "no Python 3.11 or newer found${PYTHON:+ (PYTHON=$PYTHON)}; install one or set PYTHON to its path"
}

# Prints the last line of the log; without the names of packages, which would fill it.
progress() {
  local line commas
  line=$(tail -n 1 "$log" | tr -d '\r')
  if [[ $line == 'Installing collected packages: '* ]]; then
    commas=${line//[^,]/}
    line="installing packages: $((${#commas} + 1))"
  fi
  if ((${#line} > 90)); then
    line=${line:0:88}
    line="${line% *} …"
  fi
  printf '%s\n' "$line"
}

# Runs a command into the log with a line every 15 s. In the background, so that a signal ends it at once; in a
# session of its own, so that its compilers end with it.
logged() {
  local next=$((SECONDS + 15)) status=0 child
  setsid "$@" >>"$log" 2>&1 </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.3
    if ((SECONDS >= next)); then
      printf '  %s s: %s\n' "$SECONDS" "$(progress)" >&2
      next=$((SECONDS + 15))
    fi
  done
  wait "$child" || status=$?
  return "$status"
}

pip() {
  # packages in the user's home folder are no part of the environment
  PYTHONNOUSERSITE=1 logged "$path/bin/python" -m pip --disable-pip-version-check --no-input install --no-compile --progress-bar off "$@" ||
    fail "pip could not install $shown_list: $(why_pip_failed) (log: $log)" 1
}

why_pip_failed() {
  # pip's first error is the cause, but for a list of versions of other Pythons before it
  cause '^ERROR' "$(sed '/^ERROR: Ignored/d;s/ (from versions:.*//' "$log")"
}

# `cause PATTERN TEXT` prints the first line of TEXT that matches, else the last line that is not empty.
cause() {
  grep -m 1 -E -e "$1" <<<"$2" || grep . <<<"$2" | tail -n 1
}

make_empty() {
  rm -rf "$path"
  mkdir -p "$path"
  echo building >"$path/$stamp_name"
  if [[ -n $conda ]]; then
    # micromamba refuses a folder that is not empty, so the lock file marks the unfinished build
    echo building >"$lock"
    rm -r "$path"
    logged "$conda" create --yes --prefix "$path" "python=${wanted:-3.12}" pip ||
      fail "$conda could not create $path: $(cause '^([[:alpha:]]*Error:|error |critical )' "$(cat "$log")") (log: $log)" 1
    echo building >"$path/$stamp_name"
    : >"$lock"
  else
    logged "$python" -m venv "$path" || fail "$python -m venv failed: $(tail -n 1 "$log") (log: $log)" 1
  fi
}

install() {
  local torch lenient
  # torch alone and first: pip's own configuration (an index of CPU builds) then chooses its build
  torch=$(grep -E '^torch==' <<<"$lines" | head -n 1 | sed 's/[[:space:]]*#.*//') || true
  [[ -z $torch ]] || pip "$torch"
  # a package with this mark declares an upper Python bound that it does not need
  lenient=$(sed -n 's/[[:space:]]*#[[:space:]]*ignore-requires-python.*//p' <<<"$lines")
  [[ -z $lenient ]] || pip --no-deps --ignore-requires-python "$lenient"
  pip -r "$list"
  # pip would compile one file after another. Files that packages ship for another version of Python do not compile,
  # and nothing imports them; any other file that is left out compiles at its first import
  logged "$path/bin/python" -m compileall -q -j "$(nproc 2>/dev/null || echo 1)" "$path"/lib/python*/site-packages || true
}

# An installation is of no use if its main package does not import: a library of the system is missing, glibc is too
# old, pip has put the packages elsewhere. The main package of a list is torch, or msgspec (the driver's), or the one
# that the list is named after.
check_main_packages() {
  local package status why
  for package in torch msgspec "$name"; do
    grep -qiE "^${package}[[:space:]]*([=<>~!@[;]|$)" <<<"$lines" || continue
    status=0
    logged "$path/bin/python" -I -c "import ${package//-/_}" || status=$?
    why="Python ended with status $status"
    ((status != 1)) || why=$(grep . "$log" | tail -n 1)
    ((status == 0)) || fail "$package is installed in $shown_path, but does not import: $why (log: $log)" 1
  done
}

check_tools
parse_options "$@"
resolve
shown_path=${path/#"$repo/"/}
shown_list=${list/#"$repo/"/}
lines=$(closure "$list")
read_python
hash=$(sha256sum <<<"$lines" | cut -d ' ' -f 1)
up_to_date() {
  [[ -x $path/bin/python && $(cat "$path/$stamp_name" 2>/dev/null) == "$hash" ]]
}
! up_to_date || exit 0

end() {
  local job
  # a job that setsid has not put into a session of its own yet would live on, and keep the lock
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || kill "$job" 2>/dev/null || true; done
  exit "$1"
}
trap 'end 129' HUP
trap 'end 130' INT
trap 'end 143' TERM

lock=$path.lock
[[ $path != "$repo/.venv" ]] || lock=$repo/.cache/driver-environment.lock
mkdir -p "$(dirname "$lock")" "$repo/log/env"
# another user may have put a link there, which would lead elsewhere, or a pipe, which would block
[[ ! -L $lock && (! -e $lock || -f $lock) ]] || fail "$lock is no regular file, as a lock must be: have it removed"
exec 9>>"$lock"
# pip inherits the lock: if this script is killed, the next one waits for its pip
status=0
why=$(flock --nonblock 9 2>&1) || status=$?
if ((status == 1)); then
  echo "waiting for another run that builds $path …" >&2
  flock 9
elif ((status)); then
  fail "$(dirname "$lock") is on a filesystem without file locks ($why): use a folder on one that has them, such as a local disk"
fi
! up_to_date || exit 0

log=$repo/log/env/${name}_$(date +%Y%m%d_%H%M%S).log
count=$(grep -cE '^[[:space:]]*[^#[:space:]-]' <<<"$lines" || true)
python=''
# an environment of no model, benchmark or judge is a tool of the repository
[[ -n $conda${PYTHON:-} || (-z $kind && $path != "${CONDA_BASE:-/}"/envs/*) ]] || find_conda
[[ -n $conda ]] || python=$(find_python)
state=$(cat "$path/$stamp_name" 2>/dev/null || cat "$lock")
if [[ -z $state && -n $(ls -A "$path" 2>/dev/null) ]]; then
  fail "$shown_path exists and was not made by this script; move it away or give another --path"
fi
# without a Python of its own, a list accepts the existing one
if [[ -z $state || $state == building || ! -x $path/bin/python ]] || { [[ -n $wanted ]] && ! suits "$path/bin/python"; }; then
  echo "making $shown_path and installing $count packages of $shown_list …" >&2
  make_empty
else
  why="$shown_list has changed"
  [[ $state != installed ]] || why="the last installation of $shown_list could not be used"
  echo "$why: updating its $count packages in $shown_path …" >&2
  echo building >"$path/$stamp_name"
fi
install
echo installed >"$path/$stamp_name"
check_main_packages
echo "$hash" >"$path/$stamp_name"
echo "$shown_path is ready after $SECONDS s (log: ${log/#"$repo/"/})" >&2
say_how_it_is_found

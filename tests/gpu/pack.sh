#!/usr/bin/env bash
# Downloads the wheels that the GPU examination needs on a machine without a network, beside what that machine has:
#   bash tests/gpu/pack.sh FOLDER [--there FILE] [--python 3.12]
# FILE lists the packages of that machine, as `python3 -m pip freeze` prints them there. Default: tests/gpu/there.txt.
# The folder is replaced. On that machine, bash test.sh --gpu --wheels FOLDER installs the wheels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "error: $1" >&2
  exit 2
}

most=$((56 << 20)) # bytes: a larger folder is refused
folder='' there=tests/gpu/there.txt python=3.12
while (($#)); do
  case $1 in
    --there | --python)
      [[ -n ${2:-} ]] || fail "$1 needs a value"
      if [[ $1 == --there ]]; then there=$2; else python=$2; fi
      shift
      ;;
    -*) fail "unknown option $1: use --there FILE, --python 3.12" ;;
    *) folder=$1 ;;
  esac
  shift
done
[[ -n $folder ]] || fail "name the folder for the wheels: bash tests/gpu/pack.sh gpu-wheels"
[[ -f $there ]] || fail "--there $there: there is no such file"

bash utils/make_env.sh --requirements requirements/test.txt --path .venv-test
bin=.venv-test/bin

# names as the registry compares them: small letters, one kind of dash; all builds of OpenCV are the same module
names() {
  sed -E 's/[[:space:]]*(#|==|@).*//; /^$/d; s/[_.]/-/g' "$1" | tr '[:upper:]' '[:lower:]' |
    sed -E 's/^opencv-(contrib-)?python(-headless)?$/opencv-python/' | sort -u
}

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
grep -hE '^(accelerate|diffusers|psutil|sentencepiece)==' requirements/test.txt >"$made/wanted.txt"
grep -hE '^pytest==' requirements/dev.txt >>"$made/wanted.txt" # modules of tests/support import it
grep -hE '^open-clip-torch==' requirements/test_dreamsim.txt >>"$made/wanted.txt"
"$bin/uv" pip compile -q --no-annotate --no-header --python-version "$python" \
  --python-platform x86_64-manylinux_2_28 requirements/driver.txt "$made/wanted.txt" >"$made/all.txt"
# another torch would bring gigabytes, and would not fit that machine's driver
names "$there" >"$made/there.txt"
while read -r line; do
  name=${line%%==*}
  [[ $name == torch || $name == torchvision || $name == nvidia-* || $name == cuda-* || $name == triton ]] ||
    grep -qxF "$name" "$made/there.txt" || echo "$line"
done <"$made/all.txt" >"$made/missing.txt"

rm -rf "$folder"
mkdir -p "$folder"
platforms=()
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
"$bin/python" -m pip --disable-pip-version-check download -q --no-deps --only-binary=:all: \
  --python-version "$python" --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 \
  --platform manylinux1_x86_64 -d "$folder" -r "$made/missing.txt"
size=$(cat "$folder"/*.whl | wc -c)
if ((size > most)); then
  find "$folder" -name '*.whl' -printf '%s %f\n' | sort -rn | sed -n 1,5p >&2
  fail "$folder: $size bytes, more than $most; if that machine has one of these packages, name it in --there FILE"
fi
echo "$folder: $(find "$folder" -name '*.whl' | wc -l) wheels, $((size >> 20)) MiB"

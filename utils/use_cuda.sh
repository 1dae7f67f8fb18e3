# shellcheck shell=bash
# Switches this shell to another CUDA toolkit: source utils/use_cuda.sh 12.4
# CUDA_BASE is the folder that contains cuda-12.4, or that toolkit itself. If it is missing, the shell stays unchanged.

_use_cuda() {
  local version=${1:-} home release
  if [[ -z $version ]]; then
    echo "error: usage: source utils/use_cuda.sh VERSION (such as 12.4)" >&2
    return 2
  fi
  if [[ -z ${CUDA_BASE:-} ]]; then
    echo "error: CUDA_BASE is not set: the folder that holds cuda-$version (see config.sh)" >&2
    return 2
  fi
  home=${CUDA_BASE%/}/cuda-$version
  if [[ ! -d $home && $(_cuda_release "$CUDA_BASE") == "$version" ]]; then
    home=${CUDA_BASE%/}
  fi
  if [[ ! -d $home ]]; then
    echo "error: no CUDA $version: there is no folder $home" >&2
    return 2
  fi
  export CUDA_HOME=$home
  export PATH=$home/bin:$PATH
  export LD_LIBRARY_PATH=$home/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  release=$(_cuda_release "$home")
  echo "CUDA ${release:-$version} | CUDA_HOME=$CUDA_HOME"
}

# Prints major.minor of the toolkit in folder $1, from its compiler or else from the folder's name.
_cuda_release() {
  local release=''
  if [[ -x $1/bin/nvcc ]]; then
    release=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || true
  fi
  if [[ -z $release && ${1%/} == */cuda-* ]]; then
    release=${1%/}
    release=${release##*/cuda-}
  fi
  echo "$release"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  echo "error: it changes the shell that reads it, so source it: source utils/use_cuda.sh VERSION" >&2
  exit 2
fi
_use_cuda "$@"

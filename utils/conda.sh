# shellcheck shell=bash disable=SC2034,SC2154
# Sourced by make_env.sh: the conda, mamba or micromamba of this machine.

# `find_conda` sets conda to the first that runs: below CONDA_BASE, on PATH, or where a shell hook has left its place.
# Empty: there is none.
find_conda() {
  local -a candidates=(mamba conda micromamba "${CONDA_EXE:-}" "${MAMBA_EXE:-}")
  [[ -z ${CONDA_BASE:-} ]] || candidates=("$CONDA_BASE"/{bin,condabin}/{mamba,conda,micromamba} "${candidates[@]}")
  for conda in "${candidates[@]}"; do
    # a stub of a version manager answers to the name and then fails
    if [[ -n $conda ]] && "$conda" --version >/dev/null 2>&1; then return; fi
  done
  conda=''
}

# Prints the folder of conda's base environment, below which its environments live. Status 1: there is no conda, or it
# does not say.
conda_base() {
  [[ -n $conda ]] || return
  # conda and mamba 1 call it root_prefix, mamba 2 and micromamba base environment
  "$conda" info --json 2>/dev/null | sed -nE '/"(root_prefix|base environment)"/{s/.*: *"([^"]*)".*/\1/p;q;}' | grep .
}

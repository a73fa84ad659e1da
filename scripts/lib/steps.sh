# shellcheck shell=bash disable=SC2034
# What setup, test and quickstart share: where things are, saying what is done, failing in one
# line, choosing tools and building. Sourced, never run; the caller sets -euo pipefail.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." >/dev/null && pwd -P)
venv=$root/.venv
script_name=$(basename -- "$0")
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX # would lead Python out of .venv

say() { printf '[%s] %s\n' "$script_name" "$*"; }

fail() {
  printf 'scripts/%s: %s\n' "$script_name" "$*" >&2
  exit 1
}

bad_argument() {
  printf "scripts/%s: unknown argument '%s'; see scripts/%s --help\n" "$script_name" "$1" "$script_name" >&2
  exit 2
}

print_version() {
  printf '%s (cplm) %s\n' "$script_name" "$(sed -n 's/^project(cplm VERSION \([^ ]*\).*/\1/p' "$root/CMakeLists.txt")"
}

# 75 -> "1 min 15 s"
duration() {
  if [ "$1" -ge 60 ]; then printf '%d min %d s' $(($1 / 60)) $(($1 % 60)); else printf '%d s' "$1"; fi
}

has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

# cpu or cuda: what was asked for, else by the driver.
choose_device() {
  if [ -n "${1:-}" ]; then
    printf '%s' "$1"
  elif has_nvidia_driver; then
    printf cuda
  else
    printf cpu
  fi
}

# The CMake preset, and so the folder below build/, that belongs to a device.
preset_of() { if [ "$1" = cuda ]; then printf cuda; else printf release; fi; }

# The folder that holds an nvcc of CUDA 13 (LibTorch's release), or nothing: the toolkit's, else the
# one that scripts/setup --reference put into .venv.
find_nvcc_folder() {
  local nvcc
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if [ -x "$nvcc" ] && "$nvcc" --version | grep -q 'release 13\.'; then
      dirname -- "$nvcc"
      return
    fi
  done
}

# Whether a CUDA build can be made, GPU or not: nvcc, and LibTorch with its CUDA half.
has_cuda_toolchain() {
  local wheels
  wheels=$(echo "$venv"/lib/python3*/site-packages/nvidia)
  [ -d "$wheels/cudnn" ] && [ -n "$(find_nvcc_folder)" ]
}

# g++ 12 or newer: CXX where set, else the first that is new enough.
choose_compiler() {
  [ -z "${CXX:-}" ] || return 0
  local candidate version
  for candidate in g++ g++-14 g++-13 g++-12; do
    version=$("$candidate" -dumpfullversion 2>/dev/null) || continue
    [ "${version%%.*}" -ge 12 ] || continue
    [ "$candidate" = g++ ] || export CXX=$candidate CC=gcc${candidate#g++}
    return 0
  done
  fail "no g++ 12 or newer found; run scripts/setup, or set CXX"
}

# CMake and Ninja of .venv first (Ubuntu 22.04's CMake is older than the presets need).
use_build_tools() {
  choose_compiler
  local nvcc_folder
  nvcc_folder=$(find_nvcc_folder)
  export PATH="$venv/bin${nvcc_folder:+:$nvcc_folder}:$PATH"
}

# A compiler that includes LibTorch takes up to 2 GB.
build_jobs() {
  local cores gigabytes jobs
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  jobs=$((gigabytes / 2 < cores ? gigabytes / 2 : cores))
  printf '%d' $((jobs > 1 ? jobs : 1))
}

# build_preset PRESET [TARGET]: configures and builds; Ninja does only what is left to do.
build_preset() {
  local preset=$1 folder=$root/build/$1 target=${2:-all} home
  if [ -f "$folder/CMakeCache.txt" ]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    if [ "$home" != "$root" ]; then
      say "build/$preset was made for $home: starting it afresh"
      rm -rf -- "$folder"
    fi
  fi
  (cd -- "$root" && cmake --preset "$preset" -Wno-dev >"$root/.cache/configure-$preset.log" 2>&1) || {
    cat -- "$root/.cache/configure-$preset.log" >&2
    fail "CMake could not configure build/$preset; its output stands above"
  }
  (cd -- "$root" && cmake --build --preset "$preset" --parallel "$(build_jobs)" --target "$target") ||
    fail "the build of build/$preset failed; the compiler's message stands above"
}

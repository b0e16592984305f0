# Shared by ./run and the scripts of tools/; sourced from the repository's root.
# Finds what a command needs, installs it where it may, configures and builds.

say() { printf '%s\n' "$*" >&2; }
fail() {
  say "run: $*"
  exit 1
}
wrong_use() {
  say "run: unknown: $1; see ./run help"
  exit 2
}

# Warm builds in a new checkout come from ccache only if the checkout's own path does not enter the hash.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

find_nvcc() {
  if [[ -n ${CUDACXX:-} ]]; then
    echo "$CUDACXX"
  else
    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v nvcc || true
  fi
}

have_gpu() { [[ -e /dev/nvidia0 || -e /dev/dxg ]] || nvidia-smi -L >/dev/null 2>&1; }

# A clang-format of another release formats differently, so exactly this one is asked for.
clang_format() { command -v clang-format-14 || true; }

own_sources() { git ls-files -z --cached --others --exclude-standard '*.hpp' '*.cpp' '*.h' '*.cu' '*.cuh'; }

# What each purpose needs: Debian package, then a program or a <header> that shows that it is there.
dependencies() {
  case $1 in
    build) cat <<'LIST' ;;
g++ g++
cmake cmake
ninja-build ninja
libhwy-dev <hwy/highway.h>
libtbb-dev <tbb/parallel_for.h>
libcli11-dev <CLI/CLI.hpp>
libfmt-dev <fmt/format.h>
nlohmann-json3-dev <nlohmann/json.hpp>
libxxhash-dev <xxhash.h>
LIST
    test) cat <<'LIST' ;;
libgtest-dev <gtest/gtest.h>
LIST
    format) cat <<'LIST' ;;
clang-format-14 clang-format-14
LIST
    full) cat <<'LIST' ;;
clang clang++
clang-tidy clang-tidy
g++-aarch64-linux-gnu aarch64-linux-gnu-g++
qemu-user-static qemu-aarch64-static
LIST
  esac
}

# The packages of the given purposes that are not there, one a line.
missing() {
  local purpose package probe headers=''
  for purpose in "$@"; do
    while read -r package probe; do
      if [[ $probe != '<'* ]]; then
        command -v "$probe" >/dev/null || echo "$package"
      elif command -v g++ >/dev/null; then
        headers+="#if !__has_include($probe)"$'\n'"$package"$'\n#endif\n'
      else
        echo "$package"
      fi
    done < <(dependencies "$purpose")
  done
  if [[ -n $headers ]]; then g++ -E -P -x c++ - <<<"$headers" | sed '/^$/d; s/ //g'; fi
}

# Makes sure that everything for the given purposes is there: installs it as root on Debian and Ubuntu, else prints the
# one line that does.
need() {
  local packages
  mapfile -t packages < <(missing "$@")
  if ((${#packages[@]} == 0)); then return; fi
  local line="apt-get install -y --no-install-recommends ${packages[*]}"
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    fail "missing on this machine; on Debian or Ubuntu:  sudo $line"
  fi
  command -v ccache >/dev/null || line+=' ccache'
  say "installing: ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if ! $line >/dev/null 2>&1; then
    apt-get update >/dev/null
    $line >/dev/null
  fi
}

# The same for what is good to have: without it a check is skipped, and says so.
want() { (need "$@") || true; }

# configure PRESET [-Dvariable=value ...], quietly unless it fails.
configure() {
  local preset=$1 output
  shift
  if ! output=$(cmake --preset "$preset" "$@" 2>&1); then
    say "$output"
    fail "configuring build/$preset failed"
  fi
}

# build PRESET [target ...]
build() {
  local preset=$1
  shift
  cmake --build "build/$preset" ${1:+--target "$@"}
}

# Ends with the status that ./run test takes for a skipped step; the reason is the last line.
cannot() {
  say "$1"
  exit 77
}

# tests_of PROGRAM FILTER: the names of a GoogleTest program's tests, one a line.
tests_of() {
  "$1" --gtest_list_tests --gtest_filter="$2" | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }'
}

# outcome STATUS LOG: of a test that ran alone, under timeout: passed, skipped, failed or cut off.
outcome() {
  if (($1 == 124)); then
    echo 'cut off'
  elif (($1 == 0)) && grep -q '^\[  SKIPPED' "$2"; then
    echo skipped
  elif (($1 == 0)) && grep -q '^\[  PASSED  \] 1 test\.' "$2"; then
    echo passed
  else
    echo failed
  fi
}

# A Python that can build the package: 3.11 or later, with venv and the headers. SHORTLIST_PYTHON names another one.
kNoPython='no Python 3.11 or later with venv and headers; on Debian or Ubuntu:  sudo apt-get install -y python3-venv python3-dev'
python_for_wheels() {
  local python=${SHORTLIST_PYTHON:-python3}
  "$python" - <<'CODE' >/dev/null 2>&1 || return 1
import ensurepip, pathlib, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 11) or not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
CODE
  echo "$python"
}

# environment_on PYTHON FOLDER: a new virtual environment that also sees what is installed for PYTHON, which may itself be
# one of an environment.
environment_on() {
  "$1" -m venv "$2"
  "$1" -c 'import site, sysconfig; print(*{*site.getsitepackages(), sysconfig.get_path("purelib")}, sep="\n")' \
    >"$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
}

# The wheel of dist/, with the CUDA backend where it can be tried.
wheel_for_this_machine() {
  if have_gpu; then tools/wheel.sh; else tools/wheel.sh --cpu; fi
}

# fresh_environment FOLDER: a new virtual environment with the wheel of dist/ and what its tests need. torch, CuPy and
# JAX are the machine's own or none.
fresh_environment() {
  local python wheels
  python=$(python_for_wheels) || cannot "$kNoPython"
  mapfile -t wheels < <(compgen -G 'dist/shortlist-*.whl' || true)
  ((${#wheels[@]} == 1)) || cannot "there is no wheel in dist; ./run wheel makes it"
  rm -rf "$1"
  if "$python" -c 'import sys; from importlib.util import find_spec as f; sys.exit(not (f("torch") or f("cupy") or f("jax")))'; then
    environment_on "$python" "$1"
  else
    "$python" -m venv "$1"
  fi
  "$1/bin/pip" install -q "${wheels[0]}[test]" >&2 || cannot "pip cannot fetch numpy, pytest, hypothesis and ml_dtypes"
}

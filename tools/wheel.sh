#!/usr/bin/env bash
# ./run wheel [--cpu]: dist/shortlist-<version>-*.whl: the Python package, with the CUDA backend where nvcc is found and
# --cpu does not leave it out. Its name says which systems it runs on: manylinux_2_34, say, is glibc 2.34 and later.
#
# Exit status 77, with the reason as the last line, where this machine has no Python for it or pip cannot fetch what the
# build needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

kMaxBytes=$((30 * 1024 * 1024))
kMaxBytesWithCuda=$((100 * 1024 * 1024))
# The runtimes of the system and its compiler, as tools/package.sh has them, and the interpreter's own.
kSystemLibraries='linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libpython.*'

case ${1:-} in
  '') cuda=$([[ -n $(find_nvcc) ]] && echo ON || echo OFF) ;;
  --cpu) cuda=OFF ;;
  *) wrong_use "wheel $1" ;;
esac

need build
python=$(python_for_wheels) || cannot "$kNoPython"

# The tools stay from one build to the next, so that pip fetches them once and the compiler's cache knows their headers.
tools=build/python/tools-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ -x $tools/bin/python ]] || environment_on "$python" "$tools"
mapfile -t requirements < <("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")')
"$tools/bin/pip" install -q "${requirements[@]}" >&2 || cannot "pip cannot fetch ${requirements[*]}"

# The compiler by the name that the other builds use, and a build folder as deep as theirs, share their cache.
rm -rf build/python/wheel
CXX=${CXX:-c++} "$tools/bin/pip" wheel -q . --no-build-isolation --no-deps -w build/python/wheel \
  -Cbuild-dir="build/wheel-cuda-$cuda" -Ccmake.define.SHORTLIST_CUDA=$cuda
wheel=$(echo build/python/wheel/*.whl)

# Unpacked elsewhere, every library must come from the wheel or from the system's runtimes.
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
"$tools/bin/python" -m zipfile -e "$wheel" "$elsewhere"
stray=$(ldd "$elsewhere"/shortlist/*.so* | awk '$2 == "=>" {print $1, $3}' | sort -u |
  grep -Ev "^($kSystemLibraries)\.so| $elsewhere/" || true)
[[ -z $stray ]] || fail "the wheel does not bring: $stray"

[[ ! -e $elsewhere/shortlist/libshortlist_cuda.so ]] || kMaxBytes=$kMaxBytesWithCuda
bytes=$(stat -c %s "$wheel")
((bytes < kMaxBytes)) || fail "$wheel has $bytes bytes; allowed are $kMaxBytes"

wheel=$("$tools/bin/python" tools/wheel_tag.py "$wheel")
mkdir -p dist
rm -f dist/shortlist-*.whl
cp "$wheel" dist/
say "dist/${wheel##*/}: $((bytes / 1024)) KiB"

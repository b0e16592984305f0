#!/usr/bin/env bash
# ./run package: dist/shortlist-<version>-linux-<architecture>.tar.gz, which works wherever it is unpacked: program,
# tests, benchmarks, headers, CMake package, data, and every shared library but the C and C++ runtimes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

kMaxBytes=$((50 * 1024 * 1024))
# The runtimes of the system and its compiler: shipping them would tie the package to this one's kernel and driver.
kSystemLibraries='linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s'

need build test
configure release
build release

version=$(sed -n 's/^project(shortlist VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=shortlist-$version-linux-$(uname -m)
stage=build/package/$name
rm -rf build/package
cmake --install build/release --prefix "$stage" --strip >/dev/null
cmake --install build/release --prefix "$stage" --strip --component measure >/dev/null

# What the binaries need beyond the system's runtimes lies beside libshortlist.so, where their run paths look.
binaries=("$stage"/bin/* "$stage"/lib/*.so*)
ldd "${binaries[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u | while read -r library path; do
  if [[ ! $library =~ ^($kSystemLibraries)\.so && $path != *"/$stage/"* ]]; then cp -L "$path" "$stage/lib/$library"; fi
done
cp -r data "$stage/"
git ls-files -z benchmarks | grep -zv '^benchmarks/results/' | xargs -0 cp --parents -t "$stage"
git describe --always --dirty --abbrev=12 >"$stage/COMMIT"

mkdir -p dist
archive=dist/$name.tar.gz
tar -C build/package -czf "$archive" "$name"

# Unpacked elsewhere, every library must come from the package or from the system's runtimes.
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
tar -C "$elsewhere" -xzf "$archive"
stray=$(ldd "$elsewhere/$name"/bin/* "$elsewhere/$name"/lib/*.so* | awk '$2 == "=>" {print $1, $3}' | sort -u |
  grep -Ev "^($kSystemLibraries)\.so| $elsewhere/" || true)
[[ -z $stray ]] || fail "the package does not bring: $stray"
(cd "$elsewhere/$name" && bin/shortlist --version && bin/unit_tests --gtest_brief=1)

bytes=$(stat -c %s "$archive")
((bytes < kMaxBytes)) || fail "$archive has $bytes bytes; allowed are $kMaxBytes"
say "$archive: $((bytes / 1024)) KiB"

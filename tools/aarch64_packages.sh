#!/usr/bin/env bash
# Unpacks Debian's arm64 libraries below build/aarch64-packages, for the cross build that qemu runs.
# Nothing is installed and no setting of the machine changes: apt reads its own sources, but keeps its lists and files
# in that folder, so no root is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/build/aarch64-packages
if [[ -e $folder/complete ]]; then exit 0; fi
command -v apt-get >/dev/null || exit 1
rm -rf "$folder"
mkdir -p "$folder"/{lists/partial,cache/archives/partial,packages}

apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$folder/lists" \
    -o Dir::Cache="$folder/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
cd "$folder/packages"
apt download libhwy-dev libhwy1 libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5 libgtest-dev libfmt-dev libfmt9 \
  nlohmann-json3-dev libcli11-dev libxxhash-dev
for package in *.deb; do dpkg -x "$package" "$folder"; done
touch "$folder/complete"

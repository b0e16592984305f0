#!/usr/bin/env bash
# Builds oneTBB with the thread sanitizer below build/tsan-tbb. The distribution's is built without it, so the order that
# its scheduler makes between tasks would go unseen, and every correct program would look like a race.
# The sources are the distribution's own, fetched through apt into that folder: no root, and nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=$PWD/build/tsan-tbb
if [[ -e $folder/complete ]]; then exit 0; fi
command -v apt-get >/dev/null || exit 1
rm -rf "$folder"
mkdir -p "$folder"/{sources.list.d,lists/partial,source}

# The machine's own package sources, with those of source packages switched on.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  if [[ -f $list ]]; then
    sed -E 's/^Types: *deb *$/Types: deb-src/; s/^deb /deb-src /' "$list" >"$folder/sources.list.d/${list##*/}"
  fi
done
if [[ -e $folder/sources.list.d/sources.list ]]; then mv "$folder"/sources.list.d/sources.list "$folder/sources.list"; fi
apt() {
  apt-get -q -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts="$folder/sources.list.d" \
    -o Dir::State::Lists="$folder/lists" -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
cd "$folder/source"
apt source --download-only onetbb
tar -xf onetbb_*.orig.tar.* --strip-components=1
cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBB_SANITIZE=thread \
  -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON -DCMAKE_INSTALL_PREFIX="$folder/prefix"
cmake --build "$folder/build"
cmake --install "$folder/build"
touch "$folder/complete"

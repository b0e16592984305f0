#!/usr/bin/env python3
"""Names a wheel after the oldest system that it runs on: linux_x86_64 becomes manylinux_2_N_x86_64.

  wheel_tag.py WHEEL      prints the new name; the old file is gone

N is the C library's: what the wheel's libraries ask for by symbol versions, of glibc and of the GCC runtimes that
systems of that glibc bring. Which libraries a wheel may leave to the system is checked by wheel.sh.
"""

import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# The oldest glibc whose distributions bring these versions of libstdc++: those of GCC 8, 11, 12 and 14.
GLIBC_OF_GLIBCXX = [((3, 4, 24), (2, 28)), ((3, 4, 29), (2, 34)), ((3, 4, 30), (2, 35)), ((3, 4, 33), (2, 39))]
OLDEST = (2, 28)
NEED = re.compile(r"Name: (GLIBC|GLIBCXX)_([\d.]+)")


def needs(library):
    """{"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}: the newest of each that a library asks for."""
    printed = subprocess.run(["readelf", "--version-info", "--wide", library], capture_output=True, check=True, text=True)
    asked = printed.stdout.partition("Version needs section")[2]
    newest = {}
    for kind, version in NEED.findall(asked):
        newest[kind] = max(newest.get(kind, (0,)), tuple(map(int, version.split("."))))
    return newest


def glibc_for(libraries):
    """The oldest glibc whose systems can load all of them."""
    oldest = OLDEST
    for library in libraries:
        needed = needs(library)
        oldest = max(oldest, needed.get("GLIBC", OLDEST))
        for glibcxx, glibc in GLIBC_OF_GLIBCXX:
            if needed.get("GLIBCXX", (0,)) <= glibcxx:
                oldest = max(oldest, glibc)
                break
        else:
            raise SystemExit(f"{library} needs a newer libstdc++ than is known of any system")
    return oldest[:2]


def retagged(wheel, glibc):
    """A copy beside `wheel` with the tag in its name and its metadata."""
    tag = "manylinux_{}_{}_".format(*glibc)
    target = wheel.with_name(wheel.name.replace("-linux_", f"-{tag}"))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        record = next(info for info in source.infolist() if info.filename.endswith(".dist-info/RECORD"))
        lines = source.read(record).decode()
        for info in source.infolist():
            data = source.read(info)
            if info.filename.endswith(".dist-info/WHEEL"):
                data = data.replace(b"-linux_", f"-{tag}".encode())
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                lines = re.sub(rf"^{re.escape(info.filename)},.*$", f"{info.filename},sha256={digest},{len(data)}", lines,
                               flags=re.MULTILINE)  # fmt: skip
            if info is not record:
                copy.writestr(info, data)
        copy.writestr(record, lines)
    return target


def main():
    wheel = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        glibc = glibc_for(sorted(pathlib.Path(folder).rglob("*.so*")))
    target = retagged(wheel, glibc)
    if target != wheel:
        wheel.unlink()
    print(target)


if __name__ == "__main__":
    main()

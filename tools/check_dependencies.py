#!/usr/bin/env python3
"""The dependency rule of docs/architecture.md, checked over every #include of the repository.

    core <- {cpu, cuda, reference};  core <- index <- api <- {cli, benchmarks, python}

`--self-test` plants one violation of each rule in a temporary tree and fails unless each is found, then checks that a
tree without violations passes.
"""

import argparse
import pathlib
import re
import sys
import tempfile

# layer (a folder of the repository) -> the folders that its quoted includes may reach.
ALLOWED = {
    "include": {"include"},
    "src/core": {"include", "src/core"},
    "src/io": {"include", "src/core", "src/io"},
    "src/reference": {"include", "src/reference"},
    "src/cpu": {"include", "src/core", "src/cpu"},
    "src/cuda": {"include", "src/core", "src/cuda"},
    "src/index": {"include", "src/core", "src/io", "src/index"},
    "src/api": {"include", "src/core", "src/io", "src/index", "src/reference", "src/api"},
    "cli": {"include", "cli"},
    "benchmarks": {"include", "benchmarks"},
    "examples": {"include"},
    "python": {"include", "python"},
}

# The registry names each backend once, and the public error types are what a border check throws.
EXCEPTIONS = {
    ("src/api", "cpu/backend.hpp"),
    ("src/api", "cuda/entry.hpp"),
}

# Layers that stay free of CUDA and of intrinsics, by the headers that would bring them in.
FORBIDDEN_SYSTEM = {
    "include": re.compile(r"cuda|cub/|hwy/|tbb/|immintrin|arm_neon"),
    "src/core": re.compile(r"cub/|hwy/|immintrin|arm_neon"),
    "src/index": re.compile(r"cuda|cub/|hwy/|immintrin|arm_neon"),
    "src/api": re.compile(r"cuda|cub/|hwy/|immintrin|arm_neon"),
    "src/reference": re.compile(r"cuda|cub/|hwy/|immintrin|arm_neon"),
    "cli": re.compile(r"cuda|cub/|hwy/|immintrin|arm_neon"),
}

SOURCE_SUFFIXES = {".hpp", ".cpp", ".h", ".cuh", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
PEERS = "benchmarks/peers"


def layer_of(relative):
    """The layer that a file of the repository belongs to, or None if no rule speaks of it."""
    for layer in sorted(ALLOWED, key=len, reverse=True):
        if relative.parts[: len(pathlib.PurePath(layer).parts)] == pathlib.PurePath(layer).parts:
            return layer
    return None


def resolve(root, includer, name):
    """The repository file that a quoted include means, or None if it is not of the repository."""
    for folder in (includer.parent, root / "include", root / "src", root / includer.relative_to(root).parts[0]):
        candidate = (folder / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root)
    return None


def violations(root):
    root = root.resolve()
    found = []
    for layer in ALLOWED:
        for path in sorted((root / layer).rglob("*")):
            relative = path.relative_to(root)
            if path.suffix not in SOURCE_SUFFIXES or layer_of(relative) != layer:
                continue
            if relative.as_posix().startswith(PEERS):
                continue
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                quoted, system = match.groups()
                where = f"{relative}:{text.count(chr(10), 0, match.start(quoted and 1 or 2)) + 1}"
                if system:
                    rule = FORBIDDEN_SYSTEM.get(layer)
                    if rule and rule.search(system):
                        found.append(f"{where}: {layer} includes <{system}>")
                    if not system.startswith("shortlist/"):
                        continue
                name = quoted or system
                if (layer, name) in EXCEPTIONS:
                    continue
                target = resolve(root, path, name)
                if target is None:
                    if quoted and name.split("/")[0] in {"core", "cpu", "cuda", "index", "io", "api", "reference"}:
                        found.append(f"{where}: {layer} includes {name}, which does not exist")
                    continue
                reached = layer_of(target)
                if reached is not None and reached not in ALLOWED[layer]:
                    found.append(f"{where}: {layer} includes {name}, which belongs to {reached}")
    return found


PLANTED = {  # file -> the include that breaks a rule
    "include/shortlist/a.hpp": '#include "core/order.hpp"',
    "include/shortlist/b.hpp": "#include <cuda_runtime.h>",
    "src/core/a.cpp": '#include "index/store.hpp"',
    "src/io/a.cpp": '#include "cpu/backend.hpp"',
    "src/reference/a.cpp": '#include "core/order.hpp"',
    "src/cpu/flat/a.cpp": '#include "cuda/entry.hpp"',
    "src/cuda/flat/a.cu": '#include "cpu/backend.hpp"',
    "src/index/a.cpp": '#include "cpu/backend.hpp"',
    "src/index/b.cpp": "#include <hwy/highway.h>",
    "src/api/a.cpp": '#include "cpu/flat/scan.hpp"',
    "cli/a.cpp": '#include "core/order.hpp"',
    "benchmarks/a.cpp": '#include "../src/index/store.hpp"',
    "examples/a.cpp": '#include "index/store.hpp"',
}
CLEAN = {
    "include/shortlist/types.hpp": "#include <cstdint>",
    "src/core/order.hpp": '#include "shortlist/types.hpp"',
    "src/cpu/backend.hpp": '#include "core/order.hpp"',
    "src/cpu/flat/scan.hpp": '#include "cpu/backend.hpp"',
    "src/cuda/entry.hpp": '#include "core/order.hpp"',
    "src/index/store.hpp": '#include "core/order.hpp"',
    "src/api/registry.cpp": '#include "cpu/backend.hpp"\n#include "cuda/entry.hpp"',
    "cli/main.cpp": '#include "shortlist/types.hpp"',
    "benchmarks/peers/faiss.cpp": '#include "core/order.hpp"',
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(files):
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text + "\n", encoding="utf-8")

        write(CLEAN)
        wrong = violations(root)
        if wrong:
            sys.exit("self-test: a clean tree was rejected:\n" + "\n".join(wrong))
        write(PLANTED)
        named = {line.split(":")[0] for line in violations(root)}
        if named != set(PLANTED):
            sys.exit(f"self-test: missed {sorted(set(PLANTED) - named)}, wrongly named {sorted(named - set(PLANTED))}")
    print(f"dependency rule: self-test found all {len(PLANTED)} planted violations")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true", help="check the checker, then the repository")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    wrong = violations(pathlib.Path(__file__).resolve().parent.parent)
    if wrong:
        sys.exit("\n".join(wrong))
    print("dependency rule: holds")


if __name__ == "__main__":
    main()

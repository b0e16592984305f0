#!/usr/bin/env python3
"""Checks every Markdown file of the repository, and regenerates what is generated in it.

Links: a relative link names a file that exists and, after a #, a heading of it.
Examples: a code block after `<!-- file: PATH -->` is that file, word for word.
Results: benchmarks/report.py and examples/maxk_gnn/report.py write the tables between their markers, and pictures, from the
committed measurements.
Reference: tools/api_reference.py writes docs/api.md from the docstrings of the Python package.

`--check` writes nothing and fails where something would change.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATORS = ["benchmarks/report.py", "examples/maxk_gnn/report.py", "tools/api_reference.py"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
EXAMPLE = re.compile(r"(<!-- file: (\S+) -->\n```\w*\n)(.*?)(```)", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def markdown_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def anchor(heading):
    """The fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(path):
    found = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = path if not name else (path.parent / name)
        if not file.exists():
            found.append(f"{path.relative_to(ROOT)}: link to {target}, which does not exist")
        elif fragment and fragment not in map(anchor, HEADING.findall(file.read_text(encoding="utf-8"))):
            found.append(f"{path.relative_to(ROOT)}: link to {target}, which has no such heading")
    return found


def with_examples(text):
    return EXAMPLE.sub(lambda m: m[1] + (ROOT / m[2]).read_text(encoding="utf-8") + m[4], text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    check = parser.parse_args().check

    wrong = []
    for path in markdown_files():
        text = path.read_text(encoding="utf-8")
        if with_examples(text) != text:
            if check:
                wrong.append(f"{path.relative_to(ROOT)}: an example differs from its file; ./run docs mends it")
            else:
                path.write_text(with_examples(text), encoding="utf-8")
        wrong += broken_links(path)

    for generator in GENERATORS:
        done = subprocess.run([sys.executable, ROOT / generator, *(["--check"] if check else [])], cwd=ROOT, check=False)
        if done.returncode != 0:
            wrong.append(f"{generator}: " + ("what it writes is stale; ./run docs mends it" if check else "failed"))
    if wrong:
        sys.exit("\n".join(wrong))
    print("documents: links, examples and tables are right")


if __name__ == "__main__":
    main()

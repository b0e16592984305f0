#!/usr/bin/env python3
"""The end of ./run test: what passed, failed and was skipped, and why. Exit status 1 if anything failed.

Reads steps.tsv (name, result, seconds, log; one step a line) and every JUnit file of the folder named.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ET


def first_line(text):
    """The reason within gtest's 'file:line\\nreason' or 'reason', without trailing blanks."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if len(lines) > 1 and ".cpp:" in lines[0] or len(lines) > 1 and ".cu:" in lines[0]:
        lines = lines[1:]
    return lines[0] if lines else "no reason given"


def read_cases(folder):
    """(passed, [names of failed], Counter of skip reasons) over all JUnit files, of gtest and of pytest."""
    passed, failed, skipped = 0, [], collections.Counter()
    for path in sorted(folder.glob("*.xml")):
        for case in ET.parse(path).getroot().iter("testcase"):
            name = f"{path.stem}: {case.get('classname')}.{case.get('name')}"
            reason = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(name)
            elif reason is not None:
                skipped[first_line(reason.get("message") or reason.text)] += 1
            elif case.get("status", "run") == "run":
                passed += 1
    return passed, failed, skipped


def main():
    folder = pathlib.Path(sys.argv[1])
    steps = [line.split("\t") for line in (folder / "steps.tsv").read_text().splitlines()]
    width = max(len(name) for name, *_ in steps)
    print(f"\n{'step':{width}}  result   seconds")
    for name, result, seconds, log in steps:
        note = ""
        if result == "failed":
            note = f"  see {log}"
        elif result == "skipped":
            note = "  " + pathlib.Path(log).read_text().strip().splitlines()[-1]
        print(f"{name:{width}}  {result:7}  {seconds:>7}{note}")

    passed, failed, skipped = read_cases(folder)
    print(f"\ntests: {passed} passed, {len(failed)} failed, {sum(skipped.values())} skipped")
    for reason, count in skipped.most_common():
        print(f"  skipped {count}: {reason}")
    for name in failed:
        print(f"  failed: {name}")
    minutes, seconds = divmod(sum(int(step[2]) for step in steps), 60)
    wrong = [name for name, result, *_ in steps if result == "failed"]
    verdict = f"FAILED ({', '.join(wrong)})" if wrong else "PASSED"
    print(f"\n{verdict} in {minutes} min {seconds} s")
    sys.exit(1 if wrong or failed else 0)


if __name__ == "__main__":
    main()

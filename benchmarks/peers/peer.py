"""Shared by the peers: the names of work, the policy of timing, the command line and the file they write."""

import argparse
import json
import pathlib
import re
import statistics
import sys
import time
from typing import NamedTuple

WORK = re.compile(r"flat/q(\d+)/(\d+)x(\d+)/(\w+)/(\w+)/k(\d+)/(.+)")


class Job(NamedTuple):
    work: str
    queries: int
    rows: int
    dim: int
    type: str
    metric: str
    k: int
    place: str


def parse(work):
    """The job that a name of work means, or None if it is not a flat search."""
    match = WORK.fullmatch(work)
    if not match:
        return None
    queries, rows, dim, element, metric, k, place = match.groups()
    return Job(work, int(queries), int(rows), int(dim), element, metric, int(k), place)


def jobs_by_corpus(works, wanted):
    """{(rows, dim, type): [job, ...]} of the names for which `wanted(job)` holds, small corpora first."""
    groups = {}
    for work in works:
        job = parse(work)
        if job and job.metric == "ip" and wanted(job):
            groups.setdefault((job.rows, job.dim, job.type), []).append(job)
    return dict(sorted(groups.items()))


def median_ms(run_ms, quick):
    """The median of run_ms(i): warm-up, then about 0.3 s of runs, at least 5; a slow one stops after 10 s."""
    seconds, fewest, patience = (0.03, 3, 1.0) if quick else (0.3, 5, 10.0)
    run_ms(0)
    times = []
    started = time.perf_counter()
    while len(times) < 2000:
        spent = time.perf_counter() - started
        if times and (spent > patience or (len(times) >= fewest and spent > seconds)):
            break
        times.append(run_ms(len(times)))
    return statistics.median(times)


def wall_ms(work):
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e6


def say(work, name, ms):
    print(f"{work:<64} {ms:>11.4f} ms  {name}", file=sys.stderr, flush=True)


def main(description, measure):
    """Runs `measure(works, quick)`, which gives (version, {work: {peer: ms}}), and writes both as JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--works", required=True, help="a JSON file: the list of names of work to measure")
    parser.add_argument("--out", required=True, help="where the JSON goes")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    works = json.loads(pathlib.Path(arguments.works).read_text(encoding="utf-8"))
    version, times = measure(works, arguments.quick)
    document = {"version": version, "times": times}
    pathlib.Path(arguments.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

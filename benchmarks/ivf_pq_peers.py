#!/usr/bin/env python3
"""IVF-PQ on the CPU beside FAISS's IVFPQ and IVFPQFastScan, through their Python calls: the campaign `ivf_pq_cpu`.

  ./run bench --campaign ivf_pq_cpu       builds the wheel and the generator of rows, and measures in a fresh environment

Both get the same deep-like rows, the same number of lists and all cores. For each code and refine_ratio (FAISS: k_factor
of IndexRefine) the least nprobe that reaches the recall is found; these settings then take turns, in batches and one query
at a time. The file is benchmarks/results/<machine>/ivf_pq_cpu.json.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, NamedTuple

import faiss
import numpy as np

import machine_load
import shortlist as sl

HERE = pathlib.Path(__file__).resolve().parent
ROWS, QUERIES, DIM, K = 1_000_000, 10_000, 96, 10
NLISTS = (1024,)
RECALL = 0.90
TARGET_SPEEDUP = 1.2
FIRST_PROBES, MOST_PROBES = 8, 64
SEARCHED_QUERIES = 2000  # by which the least nprobe is found; then all must reach the recall
SWEEP = (2, 4, 8, 16, 32)
COMPARED_QUERIES = 100  # with a search that decodes every row of the lists
CHECKED_QUERIES = 100  # of FAISS, whose scores are held against float64
TOLERANCE = 1e-4  # of FAISS's refined scores: it may expand the square, which loses digits
ROUNDS, SINGLES = 15, 100  # in each round a batch and so many single queries
SLOW_SECONDS, SLOW_ROUNDS = 2.0, 3  # a batch that takes longer is repeated less, and its sweep ends
PAUSE_SECONDS = 0.1  # after FAISS, whose threads spin for a while
QUIET_LOAD, QUIET_SECONDS = 0.5, 240  # the wheel was perhaps just built: so long a quieter machine is waited for

OURS = {  # code: options, refine_ratios
    "pq48x4": ({"pq_dim": 48, "pq_bits": 4}, (3, 4)),
    "pq48x8": ({"pq_dim": 48, "pq_bits": 8}, (0,)),
    "sq4": ({"code": "sq4"}, (2,)),
}
FAISS = {  # code: class, pieces, bits, k_factors
    "pq48x4fs": (faiss.IndexIVFPQFastScan, 48, 4, (3, 4, 6)),
    "pq96x4fs": (faiss.IndexIVFPQFastScan, 96, 4, (0, 2)),
    "pq48x8": (faiss.IndexIVFPQ, 48, 8, (0, 2)),
}


class Way(NamedTuple):
    """A library's index, code and refine_ratio."""

    library: str
    code: str
    refine: int
    search: Callable  # (queries, nprobe) -> (scores, ids)


class Seconds:
    """By the wall clock, and of all threads together."""

    def __init__(self, threads):
        self.threads, self.wall, self.cpu = threads, [], []


class Timing:
    """Of one way at one nprobe: what batches and single queries take."""

    def __init__(self, way, nprobe, recall):
        self.way, self.nprobe, self.recall = way, nprobe, recall
        self.batch = Seconds(os.cpu_count())
        # FAISS is also asked with one thread, which may suit a single query better.
        counts = (os.cpu_count(), 1) if way.library == "faiss" else (os.cpu_count(),)
        self.single = [Seconds(threads) for threads in counts]

    def wants_more(self):
        return len(self.batch.wall) < SLOW_ROUNDS or statistics.median(self.batch.wall) < SLOW_SECONDS

    def time_batch(self, queries):
        seconds, cpu_seconds = timed(lambda: self.way.search(queries, self.nprobe))
        self.batch.wall.append(seconds)
        self.batch.cpu.append(cpu_seconds)

    def time_singles(self, queries):
        for single in self.single:
            faiss.omp_set_num_threads(single.threads)
            cpu_before = time.process_time()
            for query in queries:
                start = time.perf_counter()
                self.way.search(query[None], self.nprobe)
                single.wall.append(time.perf_counter() - start)
            single.cpu.append((time.process_time() - cpu_before) / len(queries))
        faiss.omp_set_num_threads(os.cpu_count())

    def record(self, nlist, queries):
        best = self.batch if queries > 1 else min(self.single, key=lambda one: statistics.median(one.wall))
        refine = f"/refine{self.way.refine}" if self.way.refine else ""
        ms = 1e3 * statistics.median(best.wall)
        return {
            "work": f"ivf_pq/{ROWS}x{DIM}/q{queries}/k{K}/nlist{nlist}/nprobe{self.nprobe}/{self.way.code}{refine}/host/cpu",
            "library": self.way.library,
            "ms": ms,
            "min_ms": 1e3 * min(best.wall),
            "cpu_ms": 1e3 * statistics.median(best.cpu),
            "min_cpu_ms": 1e3 * min(best.cpu),
            "threads": best.threads,
            "runs": len(best.wall),
            "recall": self.recall,
            "qps": 1e3 * queries / ms,
            "verified": True,
        }


def timed(call):
    cpu_start, start = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - start, time.process_time() - cpu_start


def wait_until_quiet():
    until = time.monotonic() + QUIET_SECONDS
    while (load := machine_load.busy_cores()) > QUIET_LOAD and time.monotonic() < until:
        time.sleep(5)
    return load


def say(text):
    print(text, flush=True)


def read_fbin(path):
    rows, dim = np.fromfile(path, np.int32, 2)
    return np.fromfile(path, np.float32, offset=8).reshape(rows, dim)


def make_set(generator):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([generator, str(ROWS), str(QUERIES), folder], check=True)
        return read_fbin(f"{folder}/rows.fbin"), read_fbin(f"{folder}/queries.fbin")


def nearest(rows, queries):
    exact = sl.FlatIndex(DIM, "l2", device="cpu", storage="int8_and_full")
    exact.add(rows)
    return exact.search(queries, K).ids


def recall_of(ids, truth):
    return float((ids[:, :, None] == truth[:, None, :]).any(axis=2).mean())


def our_ways(rows, nlist):
    ways, builds = [], []
    for code, (options, ratios) in OURS.items():
        index = sl.IvfPqIndex(DIM, "l2", device="cpu", nlist=nlist, keep="device", **options)
        train_s, _ = timed(lambda index=index: index.train(rows))
        add_s, _ = timed(lambda index=index: index.add(rows))
        builds.append({"library": "shortlist", "nlist": nlist, "code": code, "train_s": train_s, "add_s": add_s})
        for ratio in ratios:

            def search(queries, nprobe, index=index, ratio=ratio):
                return index.search(queries, K, nprobe=nprobe, refine_ratio=ratio)

            ways.append(Way("shortlist", code, ratio, search))
    return ways, builds


def faiss_ways(rows, nlist, flat):
    """The coarse centroids are trained once, with the first code; then they serve the others."""
    ways, builds, centroids = [], [], None
    for code, (kind, pieces, bits, factors) in FAISS.items():
        coarse = faiss.IndexFlatL2(DIM)
        if centroids is not None:
            coarse.add(centroids)
        index = kind(coarse, DIM, nlist, pieces, bits)
        train_s, _ = timed(lambda index=index: index.train(rows))
        add_s, _ = timed(lambda index=index: index.add(rows))
        build = {"library": "faiss", "nlist": nlist, "code": code, "train_s": train_s, "add_s": add_s}
        builds.append(build | ({"centroids_from": builds[0]["code"]} if builds else {}))
        centroids = coarse.reconstruct_n(0, nlist)
        for factor in factors:
            refined = faiss.IndexRefine(index, flat) if factor else index
            if factor:
                refined.k_factor = factor

            def search(queries, nprobe, index=index, refined=refined, coarse=coarse):
                index.nprobe = nprobe
                return refined.search(queries, K)

            ways.append(Way("faiss", code, factor, search))
    return ways, builds


def check(way, nprobe, rows, queries):
    """Ours to the bit against a search that decodes every row; FAISS's refined scores against float64."""
    if way.library == "shortlist":
        asked = queries[:COMPARED_QUERIES]
        found = way.search(asked, nprobe)
        os.environ["SHORTLIST_FORCE_IVF_PQ"] = "decode"
        expected = way.search(asked, nprobe)
        del os.environ["SHORTLIST_FORCE_IVF_PQ"]
        for name, ours, decoded in zip(("scores", "ids"), found, expected):
            assert ours.tobytes() == decoded.tobytes(), f"{way.code}: {name} differ from those of a search without a filter"
    elif way.refine:
        asked = queries[:CHECKED_QUERIES]
        scores, ids = way.search(asked, nprobe)
        exact = ((asked[:, None].astype(np.float64) - rows[ids]) ** 2).sum(axis=2)
        assert np.abs(scores - exact).max() < TOLERANCE, f"FAISS's {way.code} returned other scores than its rows have"


def least_nprobe(way, queries, truth):
    """(nprobe, recall) of the fewest lists that reach the recall; None if MOST_PROBES do not."""
    few, few_truth = queries[:SEARCHED_QUERIES], truth[:SEARCHED_QUERIES]
    low, high = 0, FIRST_PROBES
    while high <= MOST_PROBES and recall_of(way.search(few, high)[1], few_truth) < RECALL:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        reaches = recall_of(way.search(few, middle)[1], few_truth) >= RECALL
        low, high = (low, middle) if reaches else (middle, high)
    for nprobe in range(max(1, high - 1), MOST_PROBES + 1):
        recall = recall_of(way.search(queries, nprobe)[1], truth)
        if recall >= RECALL:
            return nprobe, recall
    return None


def sweep(ways, nlist, queries, truth):
    """Recall and one batch's time over nprobe; not in turns."""
    records = []
    for way in ways:
        for nprobe in SWEEP:
            point = Timing(way, nprobe, recall_of(way.search(queries, nprobe)[1], truth))
            point.time_batch(queries)
            records.append(point.record(nlist, QUERIES))
            if point.batch.wall[0] > SLOW_SECONDS:
                break
    return records


def take_turns(timings, queries, rounds):
    for n in range(rounds):
        few = queries[n * SINGLES : (n + 1) * SINGLES]
        for timing in timings:
            if timing.wants_more():
                timing.time_batch(queries)
                timing.time_singles(few)
            if timing.way.library == "faiss":
                time.sleep(PAUSE_SECONDS)


def compare(records, nlist, queries):
    """The line of the table: the fastest setting of each library that reaches the recall."""
    work = f"ivf_pq/{ROWS}x{DIM}/q{queries}/k{K}/nlist{nlist}/recall{RECALL:.2f}/host/cpu"
    ours = min((r for r in records if r["library"] == "shortlist"), key=lambda r: r["ms"])
    line = {name: ours[name] for name in ("ms", "min_ms", "cpu_ms", "min_cpu_ms", "runs", "recall", "qps", "verified")}
    line = {"work": work, "setting": ours["work"]} | line | {"peers": {}, "peers_cpu_ms": {}, "peers_settings": {}}
    for name, is_fast_scan in (("faiss_ivfpq", False), ("faiss_fast_scan", True)):
        peers = [r for r in records if r["library"] == "faiss" and (("fs/" in r["work"]) == is_fast_scan)]
        best = min(peers, key=lambda r: r["ms"])
        line["peers"][name] = best["ms"]
        line["peers_cpu_ms"][name] = best["cpu_ms"]
        line["peers_settings"][name] = best["work"]
    line["target_speedup"] = TARGET_SPEEDUP
    over = {name: f"{ms / ours['ms']:.2f}x" for name, ms in line["peers"].items()}
    say(f"{work}: {ours['qps']:,.0f} queries/s by {ours['work']}; over {over}")
    return line


def measure(rows, queries, truth, nlist, rounds):
    """(records, builds) of one number of lists."""
    flat = faiss.IndexFlatL2(DIM)
    flat.add(rows)
    ours, our_builds = our_ways(rows, nlist)
    theirs, their_builds = faiss_ways(rows, nlist, flat)
    timings = []
    for way in ours + theirs:
        found = least_nprobe(way, queries, truth)
        say(f"nlist {nlist}, {way.library}, {way.code}, refine {way.refine}: nprobe and recall {found}")
        if found:
            check(way, found[0], rows, queries)
            timings.append(Timing(way, *found))
    take_turns(timings, queries, rounds)
    at_recall = {count: [timing.record(nlist, count) for timing in timings] for count in (QUERIES, 1)}
    lines = [compare(found, nlist, count) for count, found in at_recall.items()]
    records = lines + at_recall[QUERIES] + at_recall[1] + sweep(ours + theirs, nlist, queries, truth)
    return records, our_builds + their_builds


def git_commit():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", required=True, help="the built shortlist_deep_like")
    parser.add_argument("--machine", help="the folder of the results; by default named after the CPU")
    parser.add_argument("--nlist", type=int, nargs="+", default=NLISTS, help="numbers of lists")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in which all settings take turns")
    arguments = parser.parse_args()

    load = wait_until_quiet()
    faiss.omp_set_num_threads(os.cpu_count())
    rows, queries = make_set(arguments.generator)
    truth = nearest(rows, queries)
    records, builds = [], []
    for nlist in arguments.nlist:
        found, built = measure(rows, queries, truth, nlist, arguments.rounds)
        records += found
        builds += built
    cpu = sl.devices()[0].description
    document = {
        "campaign": "ivf_pq_cpu",
        "machine": {"library_cpu": cpu, "cores": os.cpu_count()},
        "commit": git_commit(),
        "library": sl.__version__,
        "python": platform.python_version(),
        "peers": {"faiss": {"faiss": faiss.__version__, "options": faiss.get_compile_options().strip()}},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": " ".join(["./run bench --campaign ivf_pq_cpu", *sys.argv[3:]]),
        "load_before": load,
        "limits": {},
        "builds": builds,
        "records": records,
    }
    machine = arguments.machine or f"cpu-{os.cpu_count()}core-{cpu.split(', ')[-1]}"
    file = HERE / "results" / machine / "ivf_pq_cpu.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {file}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What users of Python choose between: this package, torch and FAISS through their Python calls: the campaign `python_peers`.

  ./run bench --campaign python_peers        in a fresh environment with the wheel; the peers are what the machine has

All take turns on the same arrays; the least of several rounds counts, from the call until its result is there. Answers
are compared before anything is timed. The file is benchmarks/results/<machine>/python_peers.json.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import numpy as np

import machine_load
import shortlist as sl

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS, LEAST_CALLS, ROUND_SECONDS = 7, 3, 0.15
SEED = 1
TOP_K = {"cpu": [(65536, 256, 32), (64, 128256, 50)], "cuda": [(1048576, 256, 32), (65536, 1024, 64), (64, 128256, 50)]}
FLAT = {"cpu": [(1, 100000, 384, 10), (16, 100000, 384, 10)], "cuda": [(1, 1000000, 384, 10), (64, 1000000, 384, 10)]}
# fp32 sums of another order differ by so much, as a share of the largest score.
SCORE_TOLERANCE = 1e-5


def has(module):
    return importlib.util.find_spec(module) is not None


def normal(*shape):
    return np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)


def on(place, array):
    """A torch tensor on a GPU, and on the CPU an array that NumPy and torch share."""
    import torch

    return torch.from_numpy(array).to(place)


def wait_for(place):
    if place == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def top_k_ways(place, rows, cols, k):
    """{name: call} and what checks the answers."""
    array = normal(rows, cols)
    ways = {}
    if place == "cpu":
        ways["shortlist"] = lambda: sl.top_k(array, k)
    if has("torch"):
        tensor = on(place, array)
        ways.setdefault("shortlist", lambda: sl.top_k(tensor, k))
        ways["torch"] = lambda: tensor.topk(k)

    def check(answers):
        expected = -np.partition(-array[:100], k - 1, axis=1)[:, :k]
        for name, (values, _) in answers.items():
            got = np.asarray(values.cpu() if hasattr(values, "cpu") else values)[:100]
            assert np.array_equal(got, -np.sort(-expected, axis=1)), name

    return ways, check


def flat_ways(place, queries, rows, dim, k):
    array, asked = normal(rows, dim), normal(queries, dim + 1)[:, :dim].copy()
    plain = sl.FlatIndex(dim, "inner_product", device=place)
    plain.add(array)
    certified = None
    try:
        certified = sl.FlatIndex(dim, "inner_product", device=place, storage="int8_and_full")
        certified.add(array)
    except sl.Unsupported as problem:
        print(problem)
    question = asked if place == "cpu" else on(place, asked)
    ways = {"shortlist": lambda: plain.search(question, k)}
    if certified:
        ways["shortlist_certified"] = lambda: certified.search(question, k)
    if has("torch"):
        matrix, tensor = on(place, array).T, on(place, asked)
        ways["torch"] = lambda: (tensor @ matrix).topk(k)
    if has("faiss") and place == "cpu":
        import faiss

        flat = faiss.IndexFlatIP(dim)
        flat.add(array)
        ways["faiss"] = lambda: flat.search(asked, k)

    def check(answers):
        exact = asked[0].astype(np.float64) @ array.astype(np.float64).T
        best = -np.sort(-exact)[:k]
        for name, (_, ids) in answers.items():
            found = exact[np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)[0]]
            assert np.abs(found - best).max() <= SCORE_TOLERANCE * np.abs(best).max(), name

    return ways, check


def least_ms(call, wait):
    start = time.perf_counter()
    calls = 0
    while calls < LEAST_CALLS or time.perf_counter() - start < ROUND_SECONDS:
        call()
        wait()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e3


def measure(place, work, ways, check):
    wait = wait_for(place)
    answers = {name: call() for name, call in ways.items()}
    wait()
    check(answers)
    times = {name: float("inf") for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            times[name] = min(times[name], least_ms(call, wait))
    print(f"{work:<44} " + ", ".join(f"{name} {ms:.4g} ms" for name, ms in times.items()), flush=True)
    peers = {name: ms for name, ms in times.items() if not name.startswith("shortlist")}
    record = {"work": work, "ms": times["shortlist"], "verified": True, "peers": peers}
    if "shortlist_certified" in times:
        record["certified_ms"] = times["shortlist_certified"]
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", required=True, help="the folder of the results")
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], help="by default all that are there")
    arguments = parser.parse_args()
    devices = sl.devices()
    load = machine_load.busy_cores()
    records = []
    for place in arguments.devices or ["cpu", "cuda"][: len(devices)]:
        for rows, cols, k in TOP_K[place]:
            records.append(measure(place, f"call/top_k/{rows}x{cols}/f32/k{k}/{place}", *top_k_ways(place, rows, cols, k)))
        for queries, rows, dim, k in FLAT[place]:
            work = f"call/search/q{queries}/{rows}x{dim}/f32/ip/k{k}/{place}"
            records.append(measure(place, work, *flat_ways(place, queries, rows, dim, k)))
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    document = {
        "campaign": "python_peers",
        "machine": {"devices": [device.description for device in devices], "cores": os.cpu_count()},
        "commit": commit or "unknown",
        "library": sl.__version__,
        "python": platform.python_version(),
        "peers": {name: __import__(name).__version__ for name in ("torch", "faiss") if has(name)},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "./run bench --campaign python_peers " + " ".join(sys.argv[1:]),
        "load_before": load,
        "records": records,
    }
    file = HERE / "results" / arguments.machine / "python_peers.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written to {file}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a call costs from Python over the same call from C++: the campaign `python`.

  ./run bench --campaign python           builds shortlist_calls and the wheel, and measures in a fresh environment

Both sides make the same small calls on the same data, in turn, and keep the least mean of a batch of 200. The file is
benchmarks/results/<machine>/python.json. From C++ the outputs are there already; from Python they are made. torch's
tensors are measured where torch is; on a GPU the time is that until the call returns.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

import numpy as np

import machine_load
import shortlist as sl

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = 8  # of both sides in turn, so that both meet the machine when it is quiet
BATCH, BATCHES = 200, 100
MULTIPLIER = 2654435761
# Microseconds that a Python call may take over the C++ call, by the arrays that it takes.
TARGET_US = {"numpy": 3.0, "torch_cuda": 6.0}
WORK = re.compile(r"call/(search|top_k|sample)/(?:q1/)?(\d+)x(\d+)/f32/(?:cos/)?(?:k(\d+)|t0.8-k50-p0.95)/(cpu|cuda)")


def spread(*shape):
    """0, 1, 2, ... spread over [0, 1), as in calls/calls.cpp."""
    counts = np.arange(np.prod(shape), dtype=np.uint64)
    return ((counts * MULTIPLIER % 2**32 >> 8).astype(np.float32) * np.float32(2**-24)).reshape(shape)


def least_ms(call, between):
    least = float("inf")
    for _ in range(BATCHES):
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        least = min(least, time.perf_counter_ns() - start)
        between()
    return least / BATCH / 1e6


def call_of(work, put):
    """The call that a name of work means, on arrays that `put` makes."""
    op, rows, cols, k, place = WORK.fullmatch(work).groups()
    if op == "search":
        index = sl.FlatIndex(int(cols), "cosine", device=place)
        index.add(spread(int(rows), int(cols)))
        query, k = put(spread(1, int(cols))), int(k)
        return lambda: index.search(query, k)
    data = put(spread(int(rows), int(cols)))
    if op == "top_k":
        k = int(k)
        return lambda: sl.top_k(data, k)
    return lambda: sl.sample(data, temperature=0.8, top_k=50, top_p=0.95, seed=7)


def libraries(place):
    """{name: (how an array is made, how the queue is emptied)} of the array libraries that this machine has."""
    try:
        import torch
    except ImportError:
        torch = None
    if place == "cpu":
        found = {"numpy": (lambda a: a, lambda: None)}
        if torch:
            found["torch_cpu"] = (torch.from_numpy, lambda: None)
        return found
    return {"torch_cuda": (lambda a: torch.from_numpy(a).cuda(), torch.cuda.synchronize)} if torch else {}


def measure(program, place):
    """({work: ms from C++}, {work: {library: ms from Python}}), the least of all rounds."""
    from_cpp, from_python = {}, {}
    for _ in range(ROUNDS):
        printed = subprocess.run([program, place], capture_output=True, check=True, text=True).stdout
        for work, ms in json.loads(printed).items():
            from_cpp[work] = min(ms, from_cpp.get(work, ms))
            found = from_python.setdefault(work, {})
            for name, (put, empty_queue) in libraries(place).items():
                python_ms = least_ms(call_of(work, put), empty_queue)
                found[name] = min(python_ms, found.get(name, python_ms))
    return from_cpp, from_python


def machine_name(cpu):
    return f"cpu-{os.cpu_count()}core-{cpu.split(', ')[-1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the built shortlist_calls")
    parser.add_argument("--machine", help="the folder of the results; by default named after the GPU or the CPU")
    arguments = parser.parse_args()

    devices = sl.devices()
    load = machine_load.busy_cores()
    records = []
    for place in ["cpu", "cuda"][: len(devices)]:
        from_cpp, from_python = measure(arguments.program, place)
        for work, ms in from_cpp.items():
            over_us = {name: round((python_ms - ms) * 1e3, 3) for name, python_ms in from_python[work].items()}
            target_us = {name: us for name, us in TARGET_US.items() if name in over_us}
            records.append({"work": work, "ms": ms, "python_ms": from_python[work], "over_us": over_us,
                            "target_us": target_us})  # fmt: skip
            print(f"{work:<44} C++ {1e3 * ms:7.2f} us; over it: "
                  + ", ".join(f"{name} {us:.2f} us" for name, us in over_us.items()))  # fmt: skip
    missed = [r["work"] for r in records for name, us in r["target_us"].items() if r["over_us"][name] > us]
    print("every target is reached" if not missed else f"MISSED: {', '.join(missed)}")

    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
                            capture_output=True, text=True).stdout.strip()  # fmt: skip
    document = {
        "campaign": "python",
        "machine": {"devices": [device.description for device in devices], "cores": os.cpu_count()},
        "commit": commit or "unknown",
        "library": sl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "./run bench --campaign python",
        "load_before": load,
        "records": records,
    }
    machine = arguments.machine or machine_name(devices[0].description)
    file = HERE / "results" / machine / "python.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written to {file}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

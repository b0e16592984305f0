#!/usr/bin/env python3
"""torch on the GPU, the work of this project's GPU path: mv + topk for one query, mm + topk for a batch.

Host to host: the query comes from pinned memory and both results go to pinned memory, by the wall clock. On the device:
CUDA events, with a waiting kernel ahead, so that the time is the GPU's alone. Batches of fp32 in fp32, in tf32 and, of
rows that were rounded before, in bf16. Ids are checked against float64 scores before anything is timed.
"""

import peer
import torch

CHUNK_ROWS = 50_000
QUERY_CHUNK = 1024  # of a batch: the scores of more would not fit
QUERY_SETS = 8  # timed runs take turns among so many
WAIT_CYCLES = 120_000  # about 60 us: longer than the host takes to queue two kernels
TYPES = {"f32": torch.float32, "f16": torch.float16}
# What rounding may put last instead of the true last: rows and queries have length 1.
TOLERANCE = {"torch": 1e-5, "torch_fp32": 1e-5, "torch_tf32": 2e-3, "torch_bf16": 2e-2}
TOLERANCE_F16 = 2e-3


def unit_normal(seed, rows, dim):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    values = torch.empty((rows, dim), device="cuda")
    for first in range(0, rows, CHUNK_ROWS):  # so that the norm's scratch stays small
        part = values[first : first + CHUNK_ROWS]
        part.normal_(generator=generator)
        part /= part.norm(dim=1, keepdim=True)
    return values


def top_k(rows, queries, k):
    """scores and indices, [k] for one query and [queries, k] for a batch."""
    if len(queries) == 1:
        return torch.topk(torch.mv(rows, queries[0]), k)
    parts = [torch.topk(torch.mm(part, rows.t()), k, dim=1) for part in queries.split(QUERY_CHUNK)]
    return parts[0] if len(parts) == 1 else torch.return_types.topk([torch.cat(both) for both in zip(*parts)])


def check(rows, query, indices, k, tolerance):
    parts = [rows[s : s + CHUNK_ROWS].double() @ query.double() for s in range(0, len(rows), CHUNK_ROWS)]
    scores = torch.cat(parts)
    least = torch.topk(scores, k).values[-1]
    assert len(set(indices.tolist())) == k, "torch returned an index twice"
    assert scores[indices].min() >= least - tolerance, "torch returned a row that is not among the k best"


def host_run(rows, host_queries, k):
    """One search, host to host; the function takes the number of the run."""
    shape = (k,) if len(host_queries[0]) == 1 else (len(host_queries[0]), k)
    values = torch.empty(shape, dtype=rows.dtype).pin_memory()
    indices = torch.empty(shape, dtype=torch.int64).pin_memory()

    def search(i):
        found = top_k(rows, host_queries[i % QUERY_SETS].to("cuda", non_blocking=True), k)
        values.copy_(found.values, non_blocking=True)
        indices.copy_(found.indices, non_blocking=True)
        torch.cuda.synchronize()

    return lambda i: peer.wall_ms(lambda: search(i))


def device_run(rows, queries, k):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run(i):
        torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        top_k(rows, queries[i % QUERY_SETS], k)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    return run


def is_ours(job):
    return job.place in ("host", "device") and job.type in TYPES and job.k <= job.rows


def measure(works, quick):
    times = {}
    for (rows_count, dim, element), jobs in peer.jobs_by_corpus(works, is_ours).items():
        rows = unit_normal(1, rows_count, dim).to(TYPES[element])
        for job in jobs:
            queries = [unit_normal(2 + s, job.queries, dim).to(rows.dtype) for s in range(QUERY_SETS)]
            names = ["torch"]
            if job.queries > 1 and element == "f32":
                names = ["torch_fp32", "torch_tf32", "torch_bf16"]
            for name in names:
                torch.backends.cuda.matmul.allow_tf32 = name == "torch_tf32"
                multiplied = rows.bfloat16() if name == "torch_bf16" else rows
                asked = [q.to(multiplied.dtype) for q in queries]
                found = top_k(multiplied, asked[0], job.k)
                tolerance = TOLERANCE_F16 if element == "f16" else TOLERANCE[name]
                check(rows, queries[0][-1], found.indices.reshape(-1, job.k)[-1], job.k, tolerance)
                if job.place == "host":
                    run = host_run(multiplied, [q.cpu().pin_memory() for q in asked], job.k)
                else:
                    run = device_run(multiplied, asked, job.k)
                ms = peer.median_ms(run, quick)
                times.setdefault(job.work, {})[name] = ms
                peer.say(job.work, name, ms)
        del rows, queries
        torch.cuda.empty_cache()
    return {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

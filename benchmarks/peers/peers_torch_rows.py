#!/usr/bin/env python3
"""torch.topk over the rows of a matrix, on the CPU with all cores and on the GPU where there is one: values and indices,
into tensors that are there already. On the GPU the matrices take turns, so that the L2 cache holds none of them; the
work there asks for 32-bit indices, and torch, which has no others, writes 64-bit ones. Normal data; the values of the first rows are checked against a sort before anything is timed."""

import os

import peer
import rows
import torch

ROTATED_BYTES = 256 << 20
MOST_COPIES = 4096
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def is_ours(job):
    return job.place == "cpu" and job.type in TYPES and job.apart in ((), ("sorted",))


def is_on_gpu(job):
    small_enough = job.rows * job.cols <= 1_100_000_000
    plain = [a for a in job.apart if a != f"of{job.of_cols}"] in ([], ["i32"], ["i32", "sorted"])
    return job.place == "" and job.type in TYPES and plain and small_enough and torch.cuda.is_available()


def gpu_times(works, quick):
    generator = torch.Generator("cuda").manual_seed(1)
    times = {}
    for (row_count, cols, element), jobs in rows.jobs_by_matrix(works, is_on_gpu).items():
        first = torch.empty((row_count, cols), device="cuda").normal_(generator=generator).to(TYPES[element])
        copies = min(max(ROTATED_BYTES // (first.numel() * first.element_size()) + 1, 1), MOST_COPIES)
        matrices = [first] + [first.clone() for _ in range(copies - 1)]
        for job in jobs:
            shape = (row_count, job.k)
            out = (
                torch.empty(shape, dtype=first.dtype, device="cuda"),
                torch.empty(shape, dtype=torch.int64, device="cuda"),
            )

            views = [matrix[:, : job.cols] for matrix in matrices]

            def select(run=0, k=job.k, in_order="sorted" in job.apart, out=out, views=views):
                torch.topk(views[run % len(views)], k, dim=1, sorted=in_order, out=out)

            select()
            head = rows.CHECKED_ROWS
            rows.check(wide(views[0][:head].cpu()), wide(out[0][:head].cpu()), out[1][:head].cpu().numpy(), job.k, "torch")

            def once(run, select=select):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                select(run)
                end.record()
                end.synchronize()
                return begin.elapsed_time(end)

            ms = peer.median_ms(once, quick)
            times[job.work] = {"torch": ms}
            peer.say(job.work, "torch", ms)
    return times


def wide(tensor):
    return tensor.float().numpy()  # exact: numpy has no bf16


def measure(works, quick):
    torch.set_num_threads(os.cpu_count())
    generator = torch.Generator().manual_seed(1)
    times = {}
    for (row_count, cols, element), jobs in rows.jobs_by_matrix(works, is_ours).items():
        matrix = torch.empty((row_count, cols)).normal_(generator=generator).to(TYPES[element])
        for job in jobs:
            in_order = "sorted" in job.apart
            shape = (row_count, job.k)
            out = torch.empty(shape, dtype=matrix.dtype), torch.empty(shape, dtype=torch.int64)

            def select(k=job.k, in_order=in_order, out=out):
                torch.topk(matrix, k, dim=1, sorted=in_order, out=out)

            select()
            head = rows.CHECKED_ROWS
            rows.check(wide(matrix[:head]), wide(out[0][:head]), out[1][:head].numpy(), job.k, "torch")
            ms = peer.median_ms(lambda _, select=select: peer.wall_ms(select), quick)
            times[job.work] = {"torch": ms}
            peer.say(job.work, "torch", ms)
    if torch.cuda.is_available():
        times.update(gpu_times(works, quick))
    return {"torch_rows": torch.__version__, "threads": torch.get_num_threads()}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

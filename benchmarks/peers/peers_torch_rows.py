#!/usr/bin/env python3
"""torch.topk over the rows of a matrix on the CPU, all cores: values and indices, into tensors that are there already.
Normal data; the values of the first rows are checked against a sort before anything is timed."""

import os

import peer
import rows
import torch

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def is_ours(job):
    return job.place == "cpu" and job.type in TYPES and job.apart in ((), ("sorted",))


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
    return {"torch_rows": torch.__version__, "threads": torch.get_num_threads()}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

#!/usr/bin/env python3
"""numpy.argpartition over the rows of a matrix, a part of the rows on each core, then the values at its indices. In no
order, so it is left out of sorted work. Normal data; the values of the first rows are checked against a sort before
anything is timed."""

import concurrent.futures
import os

import numpy as np
import peer
import rows

TYPES = {"f32": np.float32, "f16": np.float16}


def is_ours(job):
    return job.place == "cpu" and job.type in TYPES and job.apart == ()


def part_of_rows(matrix, k, values, indices, first, last):
    part = matrix[first:last]
    at = np.argpartition(part, part.shape[1] - k, axis=1)[:, part.shape[1] - k :]
    indices[first:last] = at
    values[first:last] = np.take_along_axis(part, at, axis=1)


def measure(works, quick):
    cores = os.cpu_count()
    times = {}
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        for (row_count, cols, element), jobs in rows.jobs_by_matrix(works, is_ours).items():
            matrix = np.random.default_rng(1).standard_normal((row_count, cols), dtype=np.float32)
            matrix = matrix.astype(TYPES[element], copy=False)
            starts = [row_count * c // cores for c in range(cores + 1)]
            for job in jobs:
                values = np.empty((row_count, job.k), matrix.dtype)
                indices = np.empty((row_count, job.k), np.int64)

                def select(k=job.k, values=values, indices=indices):
                    work = [
                        pool.submit(part_of_rows, matrix, k, values, indices, first, last)
                        for first, last in zip(starts, starts[1:])
                        if first < last
                    ]
                    for part in work:
                        part.result()

                select()
                rows.check(matrix, values, indices, job.k, "numpy")
                ms = peer.median_ms(lambda _, select=select: peer.wall_ms(select), quick)
                times[job.work] = {"numpy": ms}
                peer.say(job.work, "numpy", ms)
    return {"numpy_rows": np.__version__, "threads": cores}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

#!/usr/bin/env python3
"""FAISS IndexFlatIP on the CPU, all cores, the work of this project's CPU path: host to host.

Two settings, both reported: `faiss` as it comes, and `faiss_blas` with distance_compute_blas_threshold = 1, which sends
every batch to its matrix product. Ids are checked against float64 scores before anything is timed.
"""

import concurrent.futures
import os

import faiss
import numpy as np
import peer

CHUNK_ROWS = 20_000
QUERY_SETS = 8  # timed runs take turns among so many
TOLERANCE = 1e-5  # FAISS's own rounding: what it may put last instead of the true last


def unit_normal(seed, rows, dim):
    values = np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return values


def build(rows, dim):
    """An index over normal rows of length 1, and those rows as it holds them."""
    index = faiss.IndexFlatIP(dim)
    starts = range(0, rows, CHUNK_ROWS)
    workers = os.cpu_count()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(starts), workers):  # a few chunks at a time, so that memory holds the rows once
            parts = pool.map(
                lambda s: unit_normal([1, s], min(CHUNK_ROWS, rows - s), dim), starts[first : first + workers]
            )
            for part in parts:
                index.add(part)
    return index, faiss.rev_swig_ptr(index.get_xb(), rows * dim).reshape(rows, dim)


def exact_scores(held, query):
    wide = query.astype(np.float64)
    parts = [held[s : s + CHUNK_ROWS].astype(np.float64) @ wide for s in range(0, len(held), CHUNK_ROWS)]
    return np.concatenate(parts)


def check(scores, ids, k):
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    assert len(set(ids)) == k, "FAISS returned an id twice"
    assert scores[ids].min() >= least - TOLERANCE, "FAISS returned a row that is not among the k best"


def is_ours(job):
    return job.place == "host/cpu" and job.type == "f32" and job.k <= job.rows


def measure(works, quick):
    faiss.omp_set_num_threads(os.cpu_count())
    default = faiss.cvar.distance_compute_blas_threshold
    times = {}
    for (rows, dim, _), jobs in peer.jobs_by_corpus(works, is_ours).items():
        index, held = build(rows, dim)
        query_sets = {}  # number of queries -> the sets, and the exact scores of the first set's last query
        for job in jobs:
            if job.queries not in query_sets:
                made = [unit_normal([2, s], job.queries, dim) for s in range(QUERY_SETS)]
                query_sets[job.queries] = made, exact_scores(held, made[0][-1])
            queries, scores = query_sets[job.queries]
            for name, threshold in {"faiss": default, "faiss_blas": 1}.items():
                faiss.cvar.distance_compute_blas_threshold = threshold
                check(scores, index.search(queries[0], job.k)[1][-1], job.k)
                ms = peer.median_ms(
                    lambda i, k=job.k: peer.wall_ms(lambda: index.search(queries[i % QUERY_SETS], k)), quick
                )
                times.setdefault(job.work, {})[name] = ms
                peer.say(job.work, name, ms)
        del held, index
    return {"faiss": faiss.__version__, "threads": os.cpu_count(), "default_blas_threshold": default}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

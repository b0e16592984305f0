"""Shared by the peers of row-wise top k: the names of work, the data, and what a right answer is."""

import re
from typing import NamedTuple

import numpy as np

WORK = re.compile(r"top_k/(\d+)x(\d+)/(\w+)/k(\d+)(/cpu)?((?:/[\w-]+)*)")
CHECKED_ROWS = 64


class Job(NamedTuple):
    work: str
    rows: int
    cols: int
    type: str
    k: int
    place: str  # "cpu", or "" for the GPU
    apart: tuple  # what sets the job apart: "sorted", "i32", "max_iter4", "ties90", "of264", ...

    @property
    def of_cols(self):
        """Columns of the matrix, of which the job has the first."""
        return next((int(a[2:]) for a in self.apart if re.fullmatch(r"of\d+", a)), self.cols)


def parse(work):
    """The job that a name of work means, or None if it is not a row-wise top k."""
    match = WORK.fullmatch(work)
    if not match:
        return None
    rows, cols, element, k, place, apart = match.groups()
    return Job(work, int(rows), int(cols), element, int(k), (place or "")[1:], tuple(a for a in apart.split("/") if a))


def jobs_by_matrix(works, wanted):
    """{(rows, of_cols, type): [job, ...]} of the names for which `wanted(job)` holds, in their order."""
    groups = {}
    for job in filter(None, map(parse, works)):
        if wanted(job):
            groups.setdefault((job.rows, job.of_cols, job.type), []).append(job)
    return groups


def check(matrix, values, indices, k, name):
    """Arrays of numpy: the first rows' values against a sort, and each value against the matrix at its index."""
    rows = matrix[:CHECKED_ROWS]
    best = -np.sort(-rows, axis=1)[:, :k]
    assert np.array_equal(-np.sort(-values[:CHECKED_ROWS], axis=1), best), f"{name} returned other values"
    at = indices[:CHECKED_ROWS]
    assert np.array_equal(np.take_along_axis(rows, at, axis=1), values[:CHECKED_ROWS]), f"{name}: values and indices"
    assert all(len(set(row)) == k for row in at.tolist()), f"{name} returned an index twice"

"""Shortlist's exact search for ann-benchmarks: recall is 1, so that only the queries per second tell."""

import numpy
import shortlist

from ..base.module import BaseANN

METRICS = {"angular": "cosine", "euclidean": "l2"}


class ShortlistFlat(BaseANN):
    """Args: ann-benchmarks' metric; a storage of shortlist.FlatIndex; a device, or None for a GPU if there is one."""

    def __init__(self, metric, storage, device=None):
        if metric not in METRICS:
            raise NotImplementedError(f"metric is {metric}; allowed is {', '.join(METRICS)}")
        self.metric, self.storage, self.device = METRICS[metric], storage, device
        self.name = f"ShortlistFlat(storage={storage})"

    def fit(self, X):
        vectors = numpy.ascontiguousarray(X, numpy.float32)
        self.index = shortlist.FlatIndex(vectors.shape[1], self.metric, device=self.device, storage=self.storage)
        self.index.add(vectors)

    def query(self, q, n):
        return self.index.search(numpy.asarray(q, numpy.float32), n).ids

    def batch_query(self, X, n):
        self.res = self.index.search(numpy.asarray(X, numpy.float32), n).ids

    def get_memory_usage(self):
        """Of the index alone, in KiB: on a GPU the process has none of it."""
        memory = self.index.memory
        return (memory.rows_bytes + memory.planes_bytes + memory.norms_bytes + memory.workspaces_bytes) / 1024

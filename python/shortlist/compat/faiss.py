"""The exact indexes of FAISS by their own names: change `import faiss` to `from shortlist.compat import faiss`.

Where they differ: ties are ordered by the smaller id, padding has the scores -inf (inner product) and +inf (L2), and a
file is a safetensors file of this package, not one of FAISS.
"""

import numpy as np

from .. import _core

__all__ = ["METRIC_INNER_PRODUCT", "METRIC_L2", "IndexFlat", "IndexFlatIP", "IndexFlatL2", "read_index", "write_index"]

METRIC_INNER_PRODUCT = 0
METRIC_L2 = 1
_NAMES = {METRIC_INNER_PRODUCT: "inner_product", METRIC_L2: "l2"}


class IndexFlat:
    """Exact search over fp32 vectors, by inner product or squared L2.

    Args:
        d: elements of a vector, 1 to 65536.
        metric: METRIC_INNER_PRODUCT or METRIC_L2.
        device: as shortlist.FlatIndex takes it; FAISS has no such argument. Arrays go in and come out as NumPy's.
    """

    is_trained = True

    def __init__(self, d, metric=METRIC_L2, device="cpu"):
        if metric not in _NAMES:
            raise _core.InvalidArgument(f"metric is {metric}; allowed is METRIC_INNER_PRODUCT or METRIC_L2")
        self._index = _core.FlatIndex(d, _NAMES[metric], device=device)

    @classmethod
    def _over(cls, index):
        wrapped = cls.__new__(cls)
        wrapped._index = index
        return wrapped

    @property
    def d(self):
        """Elements of a vector."""
        return self._index.dim

    @property
    def ntotal(self):
        """Vectors that are in the index."""
        return len(self._index)

    @property
    def metric_type(self):
        """METRIC_INNER_PRODUCT or METRIC_L2."""
        return METRIC_L2 if self._index.metric == "l2" else METRIC_INNER_PRODUCT

    def train(self, x):
        """Does nothing, as in FAISS: exact search learns nothing."""

    def add(self, x):
        """Appends [n, d]; what is not fp32 is converted, as FAISS does."""
        self._index.add(np.ascontiguousarray(x, np.float32))

    def search(self, x, k):
        """The k best of each of [n, d]: (distances [n, k] fp32, labels [n, k] int64), best first."""
        return tuple(self._index.search(np.ascontiguousarray(x, np.float32), k))

    def reset(self):
        """Removes every vector."""
        self._index = _core.FlatIndex(self._index.dim, self._index.metric, device=self._index.device)

    def reconstruct(self, key):
        """Vector `key`, [d] fp32."""
        return self._index.read(key, 1)[0]

    def reconstruct_n(self, n0=0, ni=-1):
        """Vectors n0 to n0 + ni - 1, [ni, d] fp32; ni of -1: all from n0 on."""
        return self._index.read(n0, None if ni == -1 else ni)

    def __repr__(self):
        return f"{type(self).__name__}(d={self.d}, ntotal={self.ntotal})"


class IndexFlatIP(IndexFlat):
    """Largest inner product."""

    def __init__(self, d, device="cpu"):
        super().__init__(d, METRIC_INNER_PRODUCT, device)


class IndexFlatL2(IndexFlat):
    """Smallest squared L2 distance."""

    def __init__(self, d, device="cpu"):
        super().__init__(d, METRIC_L2, device)


def write_index(index, path):
    """Writes an index of this module. Raises IoError (OSError)."""
    index._index.save(path)


def read_index(path, device="cpu"):
    """Reads what write_index wrote, or any fp32 FlatIndex by inner product or L2.

    Raises FileNotFoundError, IoError (OSError), CorruptFile (ValueError), InvalidArgument (ValueError).
    """
    index = _core.FlatIndex.load(path, device=device)
    if index.metric == "cosine" or index.dtype != "float32":
        raise _core.InvalidArgument(
            f"{path} is an index by {index.metric} of {index.dtype}; allowed is inner_product or l2 of float32"
        )
    return (IndexFlatL2 if index.metric == "l2" else IndexFlatIP)._over(index)

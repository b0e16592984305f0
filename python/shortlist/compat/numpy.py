"""numpy.argpartition on top of top_k."""

import numpy as np

from .. import _core

__all__ = ["argpartition"]


def argpartition(a, kth, axis=-1, kind="introselect", order=None):
    """Indices that would partition `a`, as numpy.argpartition: what is at kth is where a sort would have it.

    Args:
        a: float32, float16, bfloat16 or float64, of any number of axes.
        kth: a position or several, negative ones from the end. The smaller the largest of them, the faster.
        axis: None takes `a` as one row.
        kind, order: "introselect" and None; others are refused.

    Returns:
        int64, of the shape of `a`. Up to the largest kth it is a stable sort, NaN last; from there on columns ascend.

    Raises:
        InvalidArgument (ValueError), WrongType (TypeError).
    """
    if kind != "introselect":
        raise _core.InvalidArgument(f"kind is {kind}; allowed is introselect")
    if order is not None:
        raise _core.InvalidArgument(f"order is {order}; allowed is None: structured arrays are not taken")
    a = np.asarray(a)
    rows = a.reshape(-1) if axis is None else np.moveaxis(a, axis, -1)
    cols = rows.shape[-1]
    positions = np.atleast_1d(kth)
    if positions.dtype.kind not in "iu":
        raise _core.WrongType(f"kth.dtype is {positions.dtype}; allowed is integers")
    if positions.size == 0 or positions.min() < -cols or positions.max() >= cols:
        raise _core.InvalidArgument(f"kth is {kth}; allowed is {-cols} to {cols - 1}")
    k = int(np.where(positions < 0, positions + cols, positions).max()) + 1
    first = _core.top_k(rows, k, largest=False).indices
    others = np.ones(rows.shape, bool)
    np.put_along_axis(others, first, False, axis=-1)
    rest = np.nonzero(others)[-1].reshape(*rows.shape[:-1], cols - k)
    order_of_rows = np.concatenate([first, rest], axis=-1)
    return order_of_rows if axis is None else np.moveaxis(order_of_rows, -1, axis)

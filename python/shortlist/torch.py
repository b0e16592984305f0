"""Row-wise top k inside torch: differentiable, and whole under torch.compile.

`top_k` is a custom operator with a gradient, `MaxK` the activation of MaxK-GNN, `topk` stands in for torch.topk.
"""

from typing import Optional, Tuple

import torch

from . import _core
from ._results import TopK

__all__ = ["MaxK", "top_k", "topk"]


@torch.library.custom_op("shortlist::top_k", mutates_args=())
def _top_k(
    matrix: torch.Tensor, k: int, largest: bool, sorted: bool, eps: Optional[float], max_iter: Optional[int]
) -> Tuple[torch.Tensor, torch.Tensor]:
    return _core.top_k(matrix, k, largest=largest, sorted=sorted, eps=eps, max_iter=max_iter)


@_top_k.register_fake
def _(matrix, k, largest, sorted, eps, max_iter):
    shape = (*matrix.shape[:-1], k)
    return matrix.new_empty(shape), matrix.new_empty(shape, dtype=torch.int64)


def _keep_for_top_k(ctx, inputs, output):
    ctx.cols = inputs[0].shape[-1]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _top_k_gradient(ctx, gradient, _):
    """The gradient of a value goes to the column that it came from; all others have none."""
    (indices,) = ctx.saved_tensors
    spread = gradient.new_zeros((*gradient.shape[:-1], ctx.cols)).scatter(-1, indices, gradient)
    return spread, None, None, None, None, None


_top_k.register_autograd(_top_k_gradient, setup_context=_keep_for_top_k)


@torch.library.custom_op("shortlist::top_k_mask", mutates_args=())
def _top_k_mask(
    matrix: torch.Tensor, k: int, largest: bool, eps: Optional[float], max_iter: Optional[int]
) -> torch.Tensor:
    return _core.top_k_mask(matrix, k, largest=largest, eps=eps, max_iter=max_iter)


@_top_k_mask.register_fake
def _(matrix, k, largest, eps, max_iter):
    return matrix.new_empty(matrix.shape, dtype=torch.bool)


def top_k(
    matrix: torch.Tensor,
    k: int,
    *,
    largest: bool = True,
    sorted: bool = True,
    eps: Optional[float] = None,
    max_iter: Optional[int] = None,
) -> TopK[torch.Tensor]:
    """The k best of every row of [..., cols]: TopK(values, indices), as shortlist.top_k, and differentiable.

    The gradient of `values` is scattered to the positions that were kept, also where eps or max_iter stopped the search
    early. Works under torch.compile, in CUDA graphs and under autocast, which leaves its dtype alone.

    Raises InvalidArgument (ValueError), WrongType (TypeError), CudaError (RuntimeError).
    """
    return TopK(*_top_k(matrix, k, largest, sorted, eps, max_iter))


def topk(
    input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> TopK[torch.Tensor]:
    """torch.topk's signature; of equal values the smaller index comes first, and NaN last.

    Another dim than the last is moved there: for two axes without a copy.
    """
    if input.dim() == 0:
        raise _core.InvalidArgument("input is a single number; allowed is a tensor of one axis or more")
    values, indices = _top_k(input.movedim(dim, -1), k, largest, sorted, None, None)
    return TopK(values.movedim(-1, dim), indices.movedim(-1, dim))


class _KeepTopK(torch.autograd.Function):
    """What MaxK is, without torch's way to an operator, which takes longer than a small selection."""

    @staticmethod
    def forward(ctx, x, k, max_iter):
        values, indices = _core.top_k(x, k, sorted=False, max_iter=max_iter)
        ctx.save_for_backward(indices)
        return torch.zeros_like(x).scatter_(-1, indices, values)

    @staticmethod
    def backward(ctx, gradient):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, indices, gradient.gather(-1, indices)), None, None


class MaxK(torch.nn.Module):
    """Keeps the k largest of every row of [..., cols], and sets the others to 0.

    Args:
        k: how many to keep; 1 to cols.
        max_iter: stop the search after so many bisections, 1 to 64 (RTop-K, Algorithm 2); None is exact.
    """

    def __init__(self, k: int, max_iter: Optional[int] = None):
        super().__init__()
        self.k = k
        self.max_iter = max_iter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return _KeepTopK.apply(x, self.k, self.max_iter)
        values, indices = _top_k(x, self.k, True, False, None, self.max_iter)
        return torch.zeros_like(x).scatter(-1, indices, values)

    def extra_repr(self) -> str:
        return f"k={self.k}" + ("" if self.max_iter is None else f", max_iter={self.max_iter}")

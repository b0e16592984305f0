"""Graphs for node classification: read from files or made up, and as sparse matrices."""

from typing import NamedTuple, Union

import numpy as np
import torch

TRAINED, VALIDATED = 0.6, 0.2  # shares of the nodes; the rest is for the test
# Reddit's, from GraphSAGE (Hamilton et al., 2017).
REDDIT_NODES, REDDIT_FEATURES, REDDIT_CLASSES = 232_965, 602, 41


class Sparse:
    """A sparse matrix, kept beside its transpose, which gradients are multiplied by."""

    def __init__(self, rows, cols, values, shape):
        self.shape = shape
        self.matrix = _csr(rows, cols, values, shape)
        self.transpose = _csr(cols, rows, values, shape[::-1])

    def __matmul__(self, x):
        return _Multiply.apply(x, self)


class Graph(NamedTuple):
    """A graph with something known of its nodes, all on one device."""

    name: str
    rows: torch.Tensor  # [edges] int64: the node that an edge leads to
    cols: torch.Tensor  # [edges] int64: the node that it comes from
    features: Union[Sparse, torch.Tensor]  # [nodes, features] fp32
    classes: torch.Tensor  # [nodes] int64


class Split(NamedTuple):
    """Nodes of three kinds, as positions."""

    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor


def load(path, device):
    """A graph of a .npz file with two CSR matrices and labels.

    indptr, indices: the edges; x_indptr, x_indices, x_data, x_cols: the features; y: the classes.
    """
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]).to(device) for name in file.files}
    nodes = len(arrays["y"])
    features = Sparse(
        _rows_of(arrays["x_indptr"]), arrays["x_indices"].long(), arrays["x_data"], (nodes, int(arrays["x_cols"]))
    )
    return Graph(path.stem, _rows_of(arrays["indptr"]), arrays["indices"].long(), features, arrays["y"].long())


def _rows_of(starts):
    return torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())


def synthetic(nodes, degree, seed, device):
    """A graph whose nodes have `degree` neighbours each, drawn uniformly; features and classes mean nothing."""
    random = torch.Generator().manual_seed(seed)
    cols = torch.randint(nodes, (nodes * degree,), generator=random)
    features = torch.randn(nodes, REDDIT_FEATURES, generator=random)
    classes = torch.randint(REDDIT_CLASSES, (nodes,), generator=random)
    rows = torch.arange(nodes).repeat_interleave(degree)
    return Graph(f"synthetic_degree{degree}", *(t.to(device) for t in (rows, cols, features, classes)))


def split(nodes, seed, device):
    """60 % of the nodes to train on, 20 % to choose the epoch by, 20 % to test."""
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    first, second = int(TRAINED * nodes), int((TRAINED + VALIDATED) * nodes)
    return Split(*(part.to(device) for part in (order[:first], order[first:second], order[second:])))


def adjacency_for(layer, graph):
    """What a layer sums its neighbours with: "sage" takes their mean, "gcn" weighs by degrees, "gin" adds."""
    nodes = len(graph.classes)
    rows, cols = graph.rows, graph.cols
    if layer == "gcn":
        itself = torch.arange(nodes, device=rows.device)
        rows, cols = torch.cat([rows, itself]), torch.cat([cols, itself])
    degree = torch.bincount(rows, minlength=nodes).clamp(min=1).float()
    if layer == "sage":
        values = (1 / degree)[rows]
    elif layer == "gcn":
        values = degree[rows].rsqrt() * degree[cols].rsqrt()
    else:
        values = torch.ones(len(rows), device=rows.device)
    return Sparse(rows, cols, values, (nodes, nodes))


def _csr(rows, cols, values, shape):
    order = (rows * shape[1] + cols).argsort()
    starts = torch.zeros(shape[0] + 1, dtype=torch.int32, device=rows.device)
    starts[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
    return torch.sparse_csr_tensor(starts, cols[order].int(), values[order], shape, check_invariants=False)


class _Multiply(torch.autograd.Function):
    """torch's own gradient would transpose the matrix anew in every step."""

    @staticmethod
    def forward(ctx, x, sparse):
        ctx.transpose = sparse.transpose
        return sparse.matrix @ x

    @staticmethod
    def backward(ctx, gradient):
        return ctx.transpose @ gradient, None

"""MaxK-GNN of torch-geometric's layers.

A product with the features, then (LayerNorm, MaxK, dropout, convolution) x 3, then LayerNorm and Linear.
"""

import torch
from torch import nn
from torch_geometric.nn import GCNConv, GINConv, SAGEConv

import shortlist as sl
from shortlist.torch import MaxK

LAYERS = ("sage", "gcn", "gin")
HIDDEN, K = 256, 32
DEPTH = 3
DROPOUT = 0.5
MAX_ITERS = range(2, 9)
ACTIVATIONS = ("relu", "torch", "exact", *(f"max_iter{i}" for i in MAX_ITERS))


class TorchMaxK(nn.Module):
    """shortlist.torch.MaxK by torch.topk."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        values, indices = x.topk(self.k, sorted=False)
        return torch.zeros_like(x).scatter(-1, indices, values)


def max_iter_of(name):
    return int(name.removeprefix("max_iter")) if name.startswith("max_iter") else None


def activation_of(name):
    if name == "relu":
        return nn.ReLU()
    return TorchMaxK(K) if name == "torch" else MaxK(K, max_iter_of(name))


def select(name, x):
    """What the activation does first: the k best of every row, unsorted."""
    return x.topk(K, sorted=False) if name == "torch" else sl.top_k(x, K, sorted=False, max_iter=max_iter_of(name))


def convolution(layer):
    """A layer of torch-geometric that sums over neighbours by one product with a matrix, in both directions."""
    if layer == "sage":
        made = SAGEConv(HIDDEN, HIDDEN, aggr="sum")
    elif layer == "gcn":
        made = GCNConv(HIDDEN, HIDDEN, normalize=False)
    else:
        made = GINConv(nn.Linear(HIDDEN, HIDDEN))
    made.propagate = _product
    return made


def _product(adjacency, x, **_):
    return adjacency @ (x[0] if isinstance(x, tuple) else x)


class Model(nn.Module):
    def __init__(self, layer, activation, features, classes):
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(features, HIDDEN)))
        self.activation = activation_of(activation)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(DEPTH))
        self.convolutions = nn.ModuleList(convolution(layer) for _ in range(DEPTH))
        self.last = nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, classes))

    def forward(self, features, adjacency):
        x = features @ self.first
        for norm, convolve in zip(self.norms, self.convolutions):
            kept = self.activation(norm(x))
            x = convolve(nn.functional.dropout(kept, DROPOUT, self.training), adjacency)
        return self.last(x)

"""Training with the whole graph in every step, as one CUDA graph on a GPU; and how long a step takes."""

import time
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

import models

LEARNING_RATE, WEIGHT_DECAY = 0.003, 5e-4
EPOCHS_BETWEEN_TESTS = 10
RUNS_BEFORE_CAPTURE = 3  # so that torch's libraries have made what a capture may not make
TIMED_RUNS = 20


class Run(NamedTuple):
    accuracy: float  # of the test nodes, at the epoch with the best validation
    step_ms: float


class Trainer:
    """A model of one seed, and its step as something to call."""

    def __init__(self, layer, activation, graph, adjacency, train, seed):
        torch.manual_seed(seed)
        device = graph.classes.device
        self.graph, self.adjacency, self.train = graph, adjacency, train
        classes = int(graph.classes.max()) + 1
        self.model = models.Model(layer, activation, graph.features.shape[1], classes).to(device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, capturable=device.type == "cuda"
        )
        self.train_classes = graph.classes[train]
        self.step = captured(self._step, device)

    def _step(self):
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(self.graph.features, self.adjacency)
        cross_entropy(out.index_select(0, self.train), self.train_classes).backward()
        self.optimizer.step()

    @torch.no_grad()
    def right(self):
        """[nodes] bool: whose class the model tells."""
        self.model.eval()
        right = self.model(self.graph.features, self.adjacency).argmax(-1) == self.graph.classes
        self.model.train()
        return right


def captured(call, device):
    """`call`, on a GPU as a CUDA graph: small graphs would wait for Python to launch each kernel.

    What the call works on must live as long as the graph, which only has addresses.
    """
    if device.type == "cpu":
        return call
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(RUNS_BEFORE_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call, runs, device):
    """The mean of one of `runs` calls in a row."""
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(runs):
            call()
        return (time.perf_counter() - start) / runs * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / runs


def train(layer, activation, graph, adjacency, split, epochs, seed):
    trainer = Trainer(layer, activation, graph, adjacency, split.train, seed)
    tests, times = [], []
    for _ in range(0, epochs, EPOCHS_BETWEEN_TESTS):
        times.append(milliseconds(trainer.step, EPOCHS_BETWEEN_TESTS, graph.classes.device))
        right = trainer.right().float()
        tests.append(torch.stack([right[split.validation].mean(), right[split.test].mean()]))
    validation, test = torch.stack(tests).cpu().unbind(1)
    return Run(test[validation.argmax()].item(), sorted(times)[len(times) // 2])


def selection_ms(activation, nodes, device):
    """Of finding the k best of every row, as often as a step does: normal values, as LayerNorm leaves them."""
    x = torch.randn(nodes, models.HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)
    select = captured(lambda: models.select(activation, x), device)
    return models.DEPTH * milliseconds(select, TIMED_RUNS, device)


def product_ms(adjacency, nodes, device):
    """Of all products with the adjacency in a step: two for each convolution, forward and backward."""
    x = torch.randn(nodes, models.HIDDEN, device=device)
    both = captured(lambda: (adjacency.matrix @ x, adjacency.transpose @ x), device)
    return models.DEPTH * milliseconds(both, TIMED_RUNS, device)

"""integrations/ann_benchmarks against a stand-in for ann-benchmarks' base class, made as its runner does."""

import importlib
import sys
import types

import numpy as np
import pytest

from reference import search as reference_search

BASE = "ann_benchmarks.algorithms.base.module"


@pytest.fixture
def folder(repository):
    return repository / "integrations/ann_benchmarks/shortlist"


@pytest.fixture
def module(folder, monkeypatch):
    """The module as a part of ann_benchmarks.algorithms."""
    names = BASE.split(".")
    for i in range(1, len(names) + 1):
        stand_in = types.ModuleType(".".join(names[:i]))
        stand_in.__path__ = []
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    sys.modules[BASE].BaseANN = type("BaseANN", (), {"get_batch_results": lambda self: self.res})
    package = types.ModuleType("ann_benchmarks.algorithms.shortlist")
    package.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    made = importlib.import_module("ann_benchmarks.algorithms.shortlist.module")
    yield made
    del sys.modules[made.__name__]


@pytest.mark.parametrize(("metric", "ours"), [("angular", "cosine"), ("euclidean", "l2")])
def test_it_finds_the_nearest(module, metric, ours):
    random = np.random.default_rng(1)
    vectors, queries = random.standard_normal((5000, 32)).astype("f"), random.standard_normal((4, 32))
    for storage in ("full", "int8_and_full"):
        algorithm = module.ShortlistFlat(metric, storage, device="cpu")
        algorithm.fit(vectors)
        _, expected = reference_search(vectors, queries.astype("f"), 10, ours)
        assert np.array_equal(algorithm.query(queries[0], 10), expected[0])
        algorithm.batch_query(queries, 10)
        assert np.array_equal(algorithm.get_batch_results(), expected)
        assert algorithm.get_memory_usage() >= vectors.nbytes / 1024 and storage in algorithm.name


def test_it_refuses_other_metrics(module):
    with pytest.raises(NotImplementedError, match="hamming"):
        module.ShortlistFlat("hamming", "full")


def test_the_config_names_what_the_module_has(module, folder):
    text = (folder / "config.yml").read_text()
    assert "constructor: ShortlistFlat\n" in text and hasattr(module, "ShortlistFlat")
    assert "module: ann_benchmarks.algorithms.shortlist\n" in text
    storages = text.split("args: [[")[1].split("]]")[0].split(", ")
    for storage in storages:
        module.ShortlistFlat("angular", storage, device="cpu").fit(np.ones((2, 4)))

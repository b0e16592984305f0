"""Stand-ins for numpy.argpartition and for FAISS's exact indexes."""

import numpy as np
import pytest

import shortlist as sl
from data import DISTRIBUTIONS, rows
from reference import search as reference_search
from shortlist.compat import faiss
from shortlist.compat.numpy import argpartition


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("kth", [0, 4, -1, (2, 7)])
def test_argpartition_partitions(name, kth):
    a = rows(name, (3, 10, 4), np.float64, 1)
    for axis in (-1, 1, 0, None):
        position = np.clip(kth, -3, 2) if axis == 0 else np.clip(kth, -4, 3) if axis == -1 else kth
        got, theirs = argpartition(a, position, axis), np.argpartition(a, position, axis)
        assert got.shape == theirs.shape and got.dtype == theirs.dtype
        flat = a.reshape(-1) if axis is None else a
        along = -1 if axis is None else axis
        assert np.array_equal(np.sort(got, along), np.sort(theirs, along)), "not every index once"
        for at in np.atleast_1d(position):
            ours = np.take_along_axis(flat, got, along).take(at, along)
            assert np.array_equal(ours, np.sort(flat, along).take(at, along), equal_nan=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: argpartition(a, 5), ValueError, "kth is 5; allowed is -5 to 4"),
        (lambda a: argpartition(a, -6), ValueError, "kth is -6"),
        (lambda a: argpartition(a, 1.0), TypeError, "kth.dtype is float64; allowed is integers"),
        (lambda a: argpartition(a, 1, kind="heap"), ValueError, "kind is heap; allowed is introselect"),
        (lambda a: argpartition(a, 1, order="x"), ValueError, "order is x; allowed is None"),
        (lambda a: argpartition(a.astype(int), 1), TypeError, "matrix.dtype is int64"),
    ],
)
def test_argpartition_names_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((2, 5)))


@pytest.mark.parametrize(
    ("kind", "metric"), [(faiss.IndexFlatIP, "inner_product"), (faiss.IndexFlatL2, "l2")], ids=["IP", "L2"]
)
def test_faiss_indexes(kind, metric, tmp_path):
    random = np.random.default_rng(2)
    x, q = random.standard_normal((80, 12)).astype("f"), random.standard_normal((5, 12)).astype("f")
    index = kind(12)
    assert index.is_trained and (index.d, index.ntotal) == (12, 0)
    index.train(x)
    index.add(x[:50])
    index.add(x[50:].astype("d"))
    assert index.ntotal == 80 and repr(index) == f"{kind.__name__}(d=12, ntotal=80)"
    faiss.write_index(index, tmp_path / "flat.index")
    for one in (index, faiss.read_index(tmp_path / "flat.index")):
        assert type(one) is kind and one.metric_type == index.metric_type
        distances, labels = one.search(q, 7)
        expected = reference_search(x, q, 7, metric)
        assert np.array_equal(labels, expected[1]) and distances.tobytes() == expected[0].tobytes()
        assert np.array_equal(one.reconstruct(63), x[63]) and np.array_equal(one.reconstruct_n(70, 5), x[70:75])
        assert np.array_equal(one.reconstruct_n(), x)
    index.reset()
    assert index.ntotal == 0 and index.search(q, 1)[1].tolist() == [[-1]] * 5
    with pytest.raises(sl.InvalidArgument):
        index.reconstruct(0)


def test_faiss_refuses_what_it_has_no_name_for(tmp_path):
    with pytest.raises(sl.InvalidArgument, match="metric is 9"):
        faiss.IndexFlat(4, 9)
    assert faiss.IndexFlat(4).metric_type == faiss.METRIC_L2
    sl.FlatIndex(4, "cosine").save(tmp_path / "cosine.index")
    with pytest.raises(sl.InvalidArgument, match="is an index by cosine of float32"):
        faiss.read_index(tmp_path / "cosine.index")

"""IvfPqIndex on NumPy arrays: what it finds, files, pickles, tuning, and what it refuses."""

import pickle
import threading

import numpy as np
import pytest

import shortlist as sl
from data import ELEMENT_DTYPES, same_bits

METRICS = ["inner_product", "cosine", "l2"]
ROWS, DIM = 600, 13


def vectors(n, dim=DIM, dtype="float32", seed=1):
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return random.integers(0, 9, (n, dim)).astype(dtype)
    centres = np.random.default_rng(99).standard_normal((10, dim))
    return (centres[random.integers(0, 10, n)] + 0.3 * random.standard_normal((n, dim))).astype(dtype)


def index_of(rows, metric="l2", ids=None, keep="device", **options):
    index = sl.IvfPqIndex(
        rows.shape[1], metric, device="cpu", dtype=rows.dtype, nlist=8, pq_dim=5, pq_bits=4, keep=keep, **options
    )
    index.train(rows, iterations=3)
    index.add(rows, ids)
    return index


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ELEMENT_DTYPES, ids=str)
def test_every_list_and_row_is_a_flat_index(dtype, metric):
    rows, queries = vectors(ROWS, dtype=dtype), vectors(4, seed=2)
    flat = sl.FlatIndex(DIM, metric, device="cpu", dtype=dtype)
    flat.add(rows)
    index = index_of(rows, metric)
    for k in (1, 10, ROWS + 5):
        got, expected = index.search(queries, k, nprobe=8, refine_ratio=ROWS), flat.search(queries, k)
        assert np.array_equal(got.ids, expected.ids) and same_bits(got.scores, expected.scores)


def test_what_an_index_says_of_itself():
    index = sl.IvfPqIndex(DIM, device="cpu", nlist=8, pq_bits=4)
    assert "nlist=8, code='pq 7 x 4 bits', keep='none', device='cpu', not trained)" in repr(index)
    assert (index.dim, index.metric, index.dtype, index.nlist, index.pq_dim) == (DIM, "cosine", "float32", 8, 7)
    assert not index.is_trained and len(index) == 0
    index = index_of(vectors(ROWS), ids=np.arange(ROWS) * 2 + 5)
    assert index.is_trained and len(index) == ROWS and index.pq_bits == 4
    assert index.memory.codes_bytes >= ROWS * 3 and index.memory.rows_bytes >= ROWS * DIM * 4
    assert index.lists.lists == 8 and 1.0 <= index.lists.imbalance < 8.0
    assert set(index.search(vectors(1)[0], 5, nprobe=8).ids % 2) == {1}
    index.clear()
    index.reserve(1000)
    assert len(index) == 0 and (index.search(vectors(2), 3).ids == -1).all()


def test_many_adds_and_threads_and_layouts():
    rows = vectors(ROWS)
    whole = index_of(rows)
    expected = whole.search(rows[:50], 7, nprobe=3)
    parts = sl.IvfPqIndex(DIM, "l2", device="cpu", nlist=8, pq_dim=5, pq_bits=4)
    parts.train(np.asfortranarray(rows), iterations=3)
    for first in range(0, ROWS, 37):
        parts.add(rows[first : first + 37])
    found = [None] * 5

    def search(i):
        found[i] = parts.search(rows[i * 10 : i * 10 + 10].tolist(), 7, nprobe=3)

    threads = [threading.Thread(target=search, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.concatenate([one.ids for one in found]), expected.ids)


def test_files_pickles_and_growing(tmp_path):
    rows, queries = vectors(ROWS), vectors(5, seed=3)
    index = index_of(rows[:100])
    index.save(tmp_path / "it")
    part = sl.IvfPqIndex.load(tmp_path / "it", device="cpu", rows=False)
    assert len(part) == 0
    part.add(rows[100:])
    part.append_to(tmp_path / "it")
    grown = sl.IvfPqIndex.load(tmp_path / "it", device="cpu", verify=False)
    index.add(rows[100:])
    for other in (grown, pickle.loads(pickle.dumps(index))):
        assert same_bits(other.search(queries, 9, nprobe=2).scores, index.search(queries, 9, nprobe=2).scores)
    with pytest.raises(FileNotFoundError):
        sl.IvfPqIndex.load(tmp_path / "missing")
    (tmp_path / "bad").write_bytes(b"no index")
    with pytest.raises(sl.CorruptFile):
        sl.IvfPqIndex.load(tmp_path / "bad")


def test_mapped_rows(tmp_path):
    rows, queries = vectors(ROWS, dim=32), vectors(5, dim=32, seed=3)
    index = index_of(rows, keep="device")
    index.save(tmp_path / "it")
    mapped = sl.IvfPqIndex.load(tmp_path / "it", device="cpu", map_rows=True)
    assert mapped.memory.mapped_rows_bytes == ROWS * 32 * 4
    assert index.memory.mapped_rows_bytes == 0
    expected = index.search(queries, 9, nprobe=2, refine_ratio=2)
    found = mapped.search(queries, 9, nprobe=2, refine_ratio=2)
    assert np.array_equal(found.ids, expected.ids) and same_bits(found.scores, expected.scores)
    index_of(vectors(ROWS, dim=24), keep="device").save(tmp_path / "odd")  # rows of 96 bytes
    with pytest.raises(sl.Unsupported, match="multiples of 64"):
        sl.IvfPqIndex.load(tmp_path / "odd", device="cpu", map_rows=True)


def test_tune_and_suggest():
    rows, queries = vectors(ROWS), vectors(20, seed=4)
    index = index_of(rows)
    found = index.tune(queries, recall=0.99)
    assert found.reached and found.best.recall >= 0.99 and found.best in found.points
    flat = sl.FlatIndex(DIM, "l2", device="cpu")
    flat.add(rows)
    assert index.tune(queries, 0.9, truth=flat.search(queries, 10).ids).reached
    guess = sl.suggest(10**9, 96, 80 << 30)
    assert (guess.nlist, guess.pq_dim, guess.keep) == (65536, 48, "host")
    assert guess.predicted_qps == pytest.approx(2e12 / guess.bytes_per_query)


def test_wrong_use():
    rows = vectors(ROWS)
    index = sl.IvfPqIndex(DIM, device="cpu", nlist=8, pq_bits=4)
    for call, words in [
        (lambda: index.add(rows), "index is not trained; allowed is add after train"),
        (lambda: index.search(rows, 1), "index is not trained"),
        (lambda: index.train(rows[:5]), "vectors.rows is 5; allowed is 8 or more"),
        (lambda: sl.IvfPqIndex(DIM, code="sq5"), "code is sq5"),
        (lambda: sl.IvfPqIndex(DIM, pq_dim=DIM + 1), "options.pq_dim is 14"),
        (lambda: sl.suggest(10, 4, 0), "need.memory_bytes is 0"),
    ]:
        with pytest.raises(sl.InvalidArgument, match=words):
            call()
    index.train(rows)
    bad = rows.copy()
    bad[[3, 9], 2] = np.nan
    for call, words in [
        (lambda: index.add(bad), "not finite in rows 3, 9;"),
        (lambda: index.search(rows, 0), "k is 0"),
        (lambda: index.search(rows, 1, nprobe=9), "nprobe is 9; allowed is 1 to 8"),
        (lambda: index.search(rows, 1, refine_ratio=2), "0 for an index that keeps no rows"),
        (lambda: index.search(rows[:, 1:], 1), "queries.cols is 12"),
        (lambda: index.tune(rows), "one without rows"),
    ]:
        with pytest.raises(sl.InvalidArgument, match=words):
            call()
    with pytest.raises(sl.WrongType):
        index.add(rows.astype(np.float64))
    assert len(index) == 0

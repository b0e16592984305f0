"""FlatIndex with an int8 copy of its rows: the bits of the plain index, what it says of itself, files and pickles."""

import pickle

import numpy as np
import pytest

import shortlist as sl
from data import BF16, rows, same_bits

ROWS, DIM = 20_000, 96
WITH_COPY = ["int8_and_full", "int8_and_host"]


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and len(sl.devices()) < 2:
        pytest.skip("there is no GPU")
    return request.param


def make(device, storage, metric="cosine", dtype="float32"):
    try:
        return sl.FlatIndex(DIM, metric, device=device, dtype=dtype, storage=storage)
    except sl.Unsupported as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("storage", WITH_COPY)
@pytest.mark.parametrize("metric", ["cosine", "inner_product", "l2"])
@pytest.mark.parametrize("kind", ["normal", "90 % ties", "infinities", "all equal"])
def test_the_bits_of_the_plain_index(device, storage, metric, kind):
    vectors, queries = rows(kind, (ROWS, DIM), np.float32, 1), rows("normal", (3, DIM), np.float32, 2)
    plain, index = make("cpu", "full", metric), make(device, storage, metric)
    plain.add(vectors)
    index.add(vectors[:7])
    index.add(vectors[7:])
    for k in (1, 10, 300):
        for some in (queries[:1], queries):
            expected, got = plain.search(some, k), index.search(some, k)
            assert np.array_equal(got.ids, expected.ids) and same_bits(got.scores, expected.scores), (k, len(some))


@pytest.mark.parametrize("storage", WITH_COPY)
def test_what_it_says_of_itself(device, storage, tmp_path, monkeypatch):
    monkeypatch.setenv("SHORTLIST_FORCE_FLAT_SEARCH", "certified")  # a GPU reads so few rows sooner than their copy
    vectors = rows("normal", (ROWS, DIM), np.float32, 3)
    index = make(device, storage)
    index.add(vectors)
    assert index.storage == storage and f"storage='{storage}'" in repr(index)
    assert index.memory.planes_bytes >= ROWS * DIM
    assert "certified" in index.explain(k=10)
    index.save(tmp_path / "with.index")
    for again in (pickle.loads(pickle.dumps(index)), sl.FlatIndex.load(tmp_path / "with.index", device=device)):
        assert again.storage == storage and again.memory.planes_bytes == index.memory.planes_bytes
        assert np.array_equal(again.search(vectors[:2], 5).ids, index.search(vectors[:2], 5).ids)


def test_what_searches_make_of_it(device, monkeypatch):
    monkeypatch.setenv("SHORTLIST_FORCE_FLAT_SEARCH", "certified")
    vectors = rows("normal", (ROWS, DIM), np.float32, 4)
    index = make(device, "int8_and_full")
    index.add(vectors)
    assert index.search_stats == sl.SearchStats(0, 0, 0)
    index.search(vectors[0], 10)
    index.search(vectors[1], 10)
    stats = index.search_stats
    # A GPU that scans so few rows may look at all of them before it knows what to leave out.
    most = ROWS / 10 if device == "cpu" else 2 * ROWS
    assert stats.queries == stats.certified_queries == 2 and 20 <= stats.survivors <= most
    index.search(np.full(DIM, np.nan, np.float32), 10)  # of which nothing can be proven
    after = index.search_stats
    assert after[:2] == (3, 2)
    # A GPU that answers query by query counts the rows that it read for the third, too.
    assert after.survivors == stats.survivors + (ROWS if device == "cuda" else 0)


def test_without_it_nothing_is_counted():
    index = make("cpu", "full")
    index.add(np.ones((10, DIM), np.float32))
    index.search(np.ones(DIM, np.float32))
    assert index.storage == "full" and index.memory.planes_bytes == 0 and index.search_stats == (0, 0, 0)
    assert "storage" not in repr(index)


@pytest.mark.parametrize("dtype", ["float16", BF16])
def test_short_floats(device, dtype):
    vectors = rows("normal", (ROWS, DIM), np.dtype(dtype), 5)
    plain, index = make("cpu", "full", "l2", dtype), make(device, "int8_and_full", "l2", dtype)
    plain.add(vectors)
    index.add(vectors)
    expected, got = plain.search(vectors[:3], 20), index.search(vectors[:3], 20)
    assert np.array_equal(got.ids, expected.ids) and same_bits(got.scores, expected.scores)


def test_what_cannot_be():
    with pytest.raises(sl.InvalidArgument, match="storage is int4; allowed is full, int8_and_full or int8_and_host"):
        sl.FlatIndex(4, device="cpu", storage="int4")
    with pytest.raises(sl.InvalidArgument, match="options.storage is int8_and_full"):
        sl.FlatIndex(4, device="cpu", dtype="uint8", storage="int8_and_full")

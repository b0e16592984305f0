"""FlatIndex on NumPy arrays: results to the bit, ids, files, pickles, threads and memory."""

import copy
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shortlist as sl
from data import ELEMENT_DTYPES, same_bits
from reference import search as reference_search

METRICS = ["inner_product", "cosine", "l2"]


def vectors(n, dim, dtype, seed):
    random = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return random.integers(0, 9, (n, dim)).astype(dtype)
    return random.standard_normal((n, dim)).astype(dtype)


def check(index, rows, queries, k, metric, what, ids=None):
    got = index.search(queries, k)
    scores, labels = reference_search(rows, queries, k, metric, ids)
    where = f"{what}: rows {rows.shape} {rows.dtype}, queries {queries.shape} {queries.dtype}, k {k}, {metric}"
    assert np.array_equal(got.ids, labels), where
    assert same_bits(got.scores, scores.astype(np.float32)), where


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", ELEMENT_DTYPES, ids=str)
def test_every_dtype_and_metric(dtype, metric):
    for seed, (n, dim, q, k) in enumerate([(1, 1, 1, 1), (60, 129, 3, 10), (200, 17, 5, 250)]):
        rows = vectors(n, dim, dtype, seed)
        rows[n // 2] = 0
        index = sl.FlatIndex(dim, metric, device="cpu", dtype=dtype)
        index.add(rows[: n // 3])
        index.add(rows[n // 3 :])
        check(index, rows, vectors(q, dim, np.dtype("float32"), seed + 50), k, metric, f"seed {seed}")
        check(index, rows, rows[:q], k, metric, f"seed {seed}, queries as rows")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape_layout_and_ids(data):
    n, dim, q = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 140), st.integers(1, 4)))
    metric = data.draw(st.sampled_from(METRICS))
    seed = data.draw(st.integers(0, 999))
    wide = vectors(2 * n, dim + 3, np.dtype("float32"), seed)
    rows = wide[:: data.draw(st.sampled_from([1, 2])), 1 : dim + 1][:n]
    queries = np.asfortranarray(vectors(q, dim, np.dtype("float32"), seed + 1))
    ids = np.random.default_rng(seed).permutation(10 * n)[:n] if data.draw(st.booleans()) else None
    index = sl.FlatIndex(dim, metric, device="cpu")
    index.add(rows, ids=ids)
    check(index, rows, queries, data.draw(st.integers(1, n + 3)), metric, f"seed {seed}", ids)


def test_what_an_index_says_of_itself():
    index = sl.FlatIndex(384, device="cpu", dtype="float16")
    assert (len(index), index.dim, index.metric, index.dtype, index.device) == (0, 384, "cosine", "float16", "cpu")
    index.add(np.ones((1000, 384), np.float16))
    assert len(index) == 1000
    assert repr(index).startswith("FlatIndex(rows=1000, dim=384, metric='cosine', dtype='float16', device='cpu', mem")
    assert index.memory.rows_bytes >= 1000 * 384 * 2 and index.memory.norms_bytes >= 4000
    assert "1000" in index.explain(k=5, queries=2)


def test_dtypes_by_any_name():
    for name in ("int8", np.int8, np.dtype("int8")):
        assert sl.FlatIndex(4, dtype=name).dtype == "int8"
    assert sl.FlatIndex(4, "ip").metric == "inner_product"


def test_one_query_lists_and_empty_indexes():
    index = sl.FlatIndex(2, "l2", device="cpu")
    assert index.search(np.zeros((3, 2), np.float32), 2).ids.tolist() == [[-1, -1]] * 3
    index.add([[1, 2], [3, 4]], ids=[10, 20])
    index.add([5, 6], ids=[30])
    result = index.search([3, 4.5], k=4)
    assert result.ids.tolist() == [20, 30, 10, -1] and result.scores.tolist() == [0.25, 6.25, 10.25, np.inf]
    assert index.search(np.zeros((0, 2), np.float32)).scores.shape == (0, 10)
    index.add(np.zeros((0, 2), np.float32), ids=[])
    assert len(index) == 3


def test_reserve_keeps_searches_from_allocating():
    index = sl.FlatIndex(8, device="cpu")
    index.reserve(500, max_queries=4, max_k=20, concurrency=2)
    index.add(vectors(500, 8, np.dtype("float32"), 1))
    queries = vectors(4, 8, np.dtype("float32"), 2)
    before = index.memory
    for _ in range(100):
        index.search(queries, 20)
    assert index.memory == before


def test_rows_are_read_back():
    for dtype in ELEMENT_DTYPES:
        rows = vectors(9, 5, dtype, 3)
        index = sl.FlatIndex(5, dtype=dtype)
        index.add(rows)
        assert same_bits(index.read(), rows) and same_bits(index.read(2, 3), rows[2:5])
        assert index.read(9).shape == (0, 5)


def test_saved_and_loaded(tmp_path):
    rows = vectors(50, 7, np.dtype("float32"), 4)
    index = sl.FlatIndex(7, "l2", device="cpu")
    index.add(rows, ids=range(100, 150))
    for path in (tmp_path / "my.index", str(tmp_path / "other.index")):
        index.save(path)
        assert pathlib.Path(path).exists()
        for verify in (True, False):
            loaded = sl.FlatIndex.load(path, device="cpu", verify=verify)
            check(loaded, rows, rows[:3], 5, "l2", "loaded", np.arange(100, 150))


def test_files_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError):
        sl.FlatIndex.load(tmp_path / "none.index")
    with pytest.raises(sl.IoError) as raised:
        sl.FlatIndex.load(tmp_path)
    assert isinstance(raised.value, OSError)
    index = sl.FlatIndex(3)
    with pytest.raises(sl.IoError):
        index.save(tmp_path / "no" / "folder")
    index.add(np.ones((4, 3), np.float32))
    index.save(tmp_path / "good.index")
    content = bytearray((tmp_path / "good.index").read_bytes())
    content[-1] ^= 1
    (tmp_path / "bad.index").write_bytes(content)
    with pytest.raises(sl.CorruptFile) as raised:
        sl.FlatIndex.load(tmp_path / "bad.index")
    assert isinstance(raised.value, ValueError)
    assert len(sl.FlatIndex.load(tmp_path / "bad.index", verify=False)) == 4


class Named(sl.FlatIndex):
    pass


def test_pickles():
    rows = vectors(30, 6, np.dtype("float32"), 5)
    for kind in (sl.FlatIndex, Named):
        index = kind(6, device="cpu")
        index.add(rows, ids=range(5, 35))
        unpickled = pickle.loads(pickle.dumps(index))
        assert type(unpickled) is kind
        check(unpickled, rows, rows[:2], 4, "cosine", "a pickle", np.arange(5, 35))
    result = index.search(rows[:2], 4)
    again = pickle.loads(pickle.dumps(result))
    assert isinstance(again, sl.SearchResult) and np.array_equal(again.ids, result.ids)


def test_copies_and_errors_travel():
    index = sl.FlatIndex(6, "l2", device="cpu")
    index.add(vectors(30, 6, np.dtype("float32"), 5))
    copied = copy.deepcopy(index)
    index.add(vectors(1, 6, np.dtype("float32"), 6))
    assert (len(copied), len(index), copied.metric) == (30, 31, "l2")
    with pytest.raises(sl.InvalidArgument) as raised:
        index.search([1.0], 1)
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is sl.InvalidArgument and str(again) == str(raised.value)


def test_sixteen_threads_get_what_one_gets():
    rows = vectors(3000, 32, np.dtype("float32"), 6)
    index = sl.FlatIndex(32, device="cpu")
    index.add(rows)
    queries = [vectors(3, 32, np.dtype("float32"), 100 + i) for i in range(16)]
    expected = [index.search(q, 7) for q in queries]
    wrong = []

    def work(i):
        for _ in range(40):
            got = index.search(queries[i], 7)
            if not (same_bits(got.scores, expected[i].scores) and same_bits(got.ids, expected[i].ids)):
                wrong.append(i)

    run_threads(work, 16)
    assert not wrong


def test_rows_added_while_others_search_are_there_in_whole():
    index = sl.FlatIndex(256, "inner_product", device="cpu")
    wrong, done = [], threading.Event()

    def work(i):
        if i == 0:
            for step in range(40):
                index.add(np.full((500, 256), step + 1, np.float32))  # the rows move as they grow
            done.set()
        while not done.is_set():
            scores = index.search(np.ones(256, np.float32), 500).scores
            if len(set(scores.tolist())) > 1 or len(index) % 500:
                wrong.append(scores)

    run_threads(work, 6)
    assert not wrong and len(index) == 20000


def test_ctrl_c_ends_a_long_add_between_parts():
    script = """
import os, signal, threading, shortlist as sl, numpy as np
DIM, PART, ATTEMPTS = 1024, (64 << 20) // 4096, 30
rows = np.zeros((12 * PART + 5, DIM), np.float32)
rows[:, 0] = np.arange(len(rows))

held = []  # the index that is added to, for the handler, which may use it

def interrupted_add(handler):
    # A busy machine may deliver the signal too early or too late: then nothing is learnt, and it is tried again.
    for attempt in range(ATTEMPTS):
        signal.signal(signal.SIGINT, handler)
        held[:] = [sl.FlatIndex(DIM, "inner_product", device="cpu")]
        timer = threading.Timer(0.002 * (1 + attempt), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            held[0].add(rows)
            timer.join()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            timer.join()
        yield held[0]

seen = []
for index in interrupted_add(lambda *_: seen.append(len(held[0]))):
    assert len(index) == len(rows)  # the handler returned, so the add went on
    if 0 < seen[-1] < len(rows):
        break
else:
    raise SystemExit(f"the handler ran beside no add: {seen}")

for index in interrupted_add(signal.default_int_handler):
    added = len(index)
    if 0 < added < len(rows):
        break
else:
    raise SystemExit("no add was interrupted")
assert added % PART == 0, added
query = np.zeros(DIM, np.float32)
query[0] = 1
assert index.search(query, 2).ids.tolist() == [added - 1, added - 2]
index.add(rows[added:])
assert index.search(query, 1).ids.tolist() == [len(rows) - 1]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_threads(work, count):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_gil_is_released():
    index = sl.FlatIndex(256, device="cpu")
    index.add(vectors(60000, 256, np.dtype("float32"), 7))
    queries = vectors(1000, 256, np.dtype("float32"), 8)
    begin_and_end = []

    def search():
        begin_and_end.append(time.perf_counter())
        index.search(queries, 10)
        begin_and_end.append(time.perf_counter())

    thread = threading.Thread(target=search)
    longest, last = 0, time.perf_counter()
    thread.start()  # which already waits for a thread that holds the GIL
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    longest = max(longest, time.perf_counter() - last)
    took = begin_and_end[1] - begin_and_end[0]
    assert longest < took / 2, f"nothing ran for {longest:.3f} s of a search of {took:.3f} s"


def test_ten_thousand_searches_leave_no_memory_behind():
    script = """
import pathlib, resource, shortlist as sl, numpy as np
index = sl.FlatIndex(16, device="cpu")
index.add(np.random.default_rng(1).standard_normal((64, 16), dtype=np.float32))
query = np.ones((2, 16), np.float32)

def search(times):
    for _ in range(times):
        index.search(query, 50)
        sl.top_k(query, 5)
        sl.sample(query, top_k=3, seed=[1, 2])

def resident_bytes():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

search(1000)
before = resident_bytes()
search(10000)
print(resident_bytes() - before)
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(printed) < 1 << 20  # one result kept from each search would be 12 MB


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda i: sl.FlatIndex(0), ValueError, "options.dim is 0; allowed is 1 to 65536"),
        (lambda i: sl.FlatIndex(4, "hamming"), ValueError, "metric is hamming; allowed is inner_product"),
        (lambda i: sl.FlatIndex(4, device="gpu"), ValueError, "device is gpu; allowed is cpu, cuda"),
        (lambda i: sl.FlatIndex(4, dtype="float64"), ValueError, "dtype is float64; allowed is float32, float16"),
        (lambda i: i.add(np.ones((2, 4))), TypeError, "vectors.dtype is float64; allowed is float32, the dtype of the"),
        (lambda i: i.add(np.ones((2, 5), "f")), ValueError, "vectors.cols is 5; allowed is 4, the dim of the index"),
        (lambda i: i.add(np.ones((2, 2, 4), "f")), ValueError, "vectors is of shape [2, 2, 4]; allowed is [n, dim]"),
        (lambda i: i.add(np.ones((2, 4), "f"), ids=[1]), ValueError, "ids is of shape [1]; allowed is [2], one a row"),
        (lambda i: i.add(np.ones((2, 4), "f"), ids=[1, 1]), ValueError, "ids"),
        (lambda i: i.add(np.ones((2, 4), "f"), ids=[1, -1]), ValueError, "ids"),
        (lambda i: i.add(np.ones((2, 4), "f"), ids=np.ones(2)), TypeError, "ids.dtype is float64; allowed is int64"),
        (lambda i: i.add(np.ones((1, 4), "f"), ids=[2**70]), ValueError, "ids has integers that are too large"),
        (lambda i: i.search(np.ones((2, 4))), TypeError, "queries.dtype is float64; allowed is float32, float16"),
        (lambda i: i.search(np.ones((2, 3), "f")), ValueError, "queries.cols is 3; allowed is 4"),
        (lambda i: i.search(np.ones((2, 4), "f"), 0), ValueError, "k is 0; allowed is 1 or more"),
        (lambda i: i.search({}), TypeError, "queries is a dict; allowed is an array"),
        (lambda i: i.reserve(-1), ValueError, "limits.max_rows is -1"),
        (lambda i: i.read(2), ValueError, "first is 2; allowed is 0 to 1, the rows"),
        (lambda i: i.read(0, 2), ValueError, "count is 2; allowed is 0 to 1"),
        (lambda i: i.explain(k=0), ValueError, "shape.k is 0"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(call, error, message):
    index = sl.FlatIndex(4, device="cpu")
    index.add([1, 2, 3, 4])
    with pytest.raises(error) as raised:
        call(index)
    assert isinstance(raised.value, sl.Error) and message in str(raised.value)
    assert len(index) == 1 and index.search([1, 2, 3, 4], 1).ids.tolist() == [0]

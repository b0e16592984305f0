"""top_k and top_k_mask on NumPy arrays: the same bits as the reference, in whatever layout the rows come."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shortlist as sl
from data import DISTRIBUTIONS, VALUE_DTYPES, rows, same_bits
from reference import top_k as reference_top_k


def check(matrix, k, what, **options):
    got = sl.top_k(matrix, k, **options)
    values, indices = reference_top_k(matrix, k, **options)
    where = f"{what}, shape {matrix.shape}, {matrix.dtype}, k {k}, {options}"
    assert np.array_equal(got.indices, indices), where
    assert same_bits(got.values, values), where


@pytest.mark.parametrize("dtype", VALUE_DTYPES, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_distribution_and_shape(name, dtype):
    for seed, (shape, k) in enumerate([((1, 1), 1), ((3, 7), 7), ((5, 33), 4), ((2, 300), 17), ((1, 5000), 100)]):
        matrix = rows(name, shape, dtype, seed)
        for largest, sorted in itertools.product((True, False), repeat=2):
            check(matrix, k, f"{name}, seed {seed}", largest=largest, sorted=sorted)


LAYOUTS = {
    "rows apart": lambda m: np.concatenate([m, m], 1)[:, : m.shape[1]],
    "columns apart": lambda m: np.repeat(m, 3, axis=1)[:, ::3],
    "Fortran order": np.asfortranarray,
    "reversed rows": lambda m: m[::-1].copy()[::-1],
    "reversed columns": lambda m: m[:, ::-1].copy()[:, ::-1],
    "one row for all": lambda m: np.broadcast_to(m[:1], m.shape),
    "not aligned": lambda m: np.frombuffer(b"x" + m.tobytes(), np.uint8)[1:].view(m.dtype).reshape(m.shape),
    "read only": lambda m: np.frombuffer(m.tobytes(), m.dtype).reshape(m.shape),
    "three axes": lambda m: m.reshape(2, -1, m.shape[1]),
    "axes in another order": lambda m: m.reshape(2, -1, m.shape[1]).swapaxes(0, 1).copy().swapaxes(0, 1),
    "one axis": lambda m: m[0],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    matrix = LAYOUTS[name](rows("normal", (6, 40), np.float32, 1))
    check(matrix, 5, name)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_slice_of_any_matrix(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 70)))
    matrix = rows(data.draw(st.sampled_from(list(DISTRIBUTIONS))), shape, data.draw(st.sampled_from(VALUE_DTYPES)),
                  data.draw(st.integers(0, 99)))  # fmt: skip
    steps = data.draw(st.tuples(*[st.sampled_from([1, 2, 3, -1, -2])] * 2))
    part = matrix[:: steps[0], :: steps[1]]
    if data.draw(st.booleans()) and part.shape[0] > 0:
        part = part.T
    check(part, data.draw(st.integers(1, part.shape[1])), "a slice", largest=data.draw(st.booleans()),
          sorted=data.draw(st.booleans()))  # fmt: skip


def test_mask_marks_what_top_k_keeps():
    for name in DISTRIBUTIONS:
        matrix = rows(name, (4, 50), np.float32, 3)
        for largest in (True, False):
            mask = sl.top_k_mask(matrix, 9, largest=largest)
            expected = np.zeros(matrix.shape, bool)
            np.put_along_axis(expected, reference_top_k(matrix, 9, largest)[1], True, 1)
            assert mask.dtype == bool and np.array_equal(mask, expected), name


def test_early_stops_keep_k_columns_and_become_exact():
    matrix = rows("normal", (200, 256), np.float32, 4)
    exact = reference_top_k(matrix, 16, sorted=False)[1]
    overlap = []
    for max_iter in (2, 4, 8, 64):
        indices = sl.top_k(matrix, 16, max_iter=max_iter, sorted=False).indices
        assert (np.diff(indices, axis=1) > 0).all() and indices.min() >= 0 and indices.max() < 256
        overlap.append(np.mean([len(set(a) & set(b)) for a, b in zip(indices, exact)]) / 16)
    assert overlap[0] < 0.99 and overlap == sorted(overlap) and overlap[-1] == 1
    assert np.array_equal(sl.top_k(matrix, 16, eps=0.0, sorted=False).indices, exact)
    assert not np.array_equal(sl.top_k(matrix, 16, eps=0.1, sorted=False).indices, exact)


def test_ragged_rows():
    matrix = rows("normal", (4, 10), np.float32, 5)
    begins, ends = [0, 2, 9, 4], np.array([10, 7, 10, 4], np.int32)
    values, indices = sl.top_k(matrix, 3, begins=begins, ends=ends)
    for row, (begin, end) in enumerate(zip(begins, ends)):
        found = min(3, end - begin)
        expected = begin + reference_top_k(matrix[row : row + 1, begin:end], found)[1][0]
        assert indices[row].tolist() == expected.tolist() + [-1] * (3 - found)
        assert values[row].tolist() == matrix[row, expected].tolist() + [-np.inf] * (3 - found)
    assert sl.top_k(matrix, 3, ends=ends, largest=False).values[3].tolist() == sorted(matrix[3, :4])[:3]


def test_results_are_of_the_dtype_asked_for():
    matrix = rows("normal", (2, 8), np.float16, 6)
    for dtype in ("int32", "int64"):
        result = sl.top_k(matrix, 2, index_dtype=dtype)
        assert result.indices.dtype == dtype and result.values.dtype == np.float16
    assert sl.top_k(np.zeros((0, 5), np.float32), 2).indices.shape == (0, 2)
    assert sl.top_k(np.zeros((3, 0, 5), np.float32), 2).values.shape == (3, 0, 2)


def test_what_has_the_buffer_protocol_or_is_a_list():
    import array

    assert sl.top_k(array.array("f", [1, 3, 2]), 2).indices.tolist() == [1, 2]
    assert sl.top_k(memoryview(np.array([1.0, 3.0, 2.0])), 1).indices.tolist() == [1]
    result = sl.top_k([[0.5, 2.0], [7.0, 1.0]], 1)
    assert result.values.dtype == np.float64 and result.indices.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: sl.top_k(m, 0), ValueError, "k is 0; allowed is 1 to cols, which is 5"),
        (lambda m: sl.top_k(m, 6), ValueError, "k is 6; allowed is 1 to cols, which is 5"),
        (lambda m: sl.top_k(m, 10**15), ValueError, "k is 1000000000000000; allowed is 1 to cols"),
        (lambda m: sl.top_k(m.astype(int), 1), TypeError, "matrix.dtype is int64; allowed is float32"),
        (lambda m: sl.top_k(m.astype(">f4"), 1), TypeError, "matrix.dtype is another dtype; allowed is float32"),
        (lambda m: sl.top_k(m.astype("U"), 1), TypeError, "matrix.dtype is "),
        (lambda m: sl.top_k("rows", 1), TypeError, "matrix is a str; allowed is an array of NumPy"),
        (lambda m: sl.top_k(None, 1), TypeError, "matrix is a NoneType"),
        (lambda m: sl.top_k(np.float32(1), 1), ValueError, "matrix is a single number; allowed is an array of one"),
        (lambda m: sl.top_k(m.reshape([1] * 20 + [2, 5]), 1), ValueError, "matrix is 22-dimensional; allowed is up to"),
        (lambda m: sl.top_k(m, 1, eps=-1.0), ValueError, "eps is -1; allowed is 0 or more, and finite"),
        (lambda m: sl.top_k(m, 1, max_iter=65), ValueError, "max_iter is 65; allowed is 1 to 64"),
        (lambda m: sl.top_k(m, 1, eps=0.1, max_iter=2), ValueError, "eps and max_iter is given together"),
        (lambda m: sl.top_k(m, 1, index_dtype="int8"), ValueError, "index_dtype is int8; allowed is int32 or int64"),
        (lambda m: sl.top_k(m, 1, ends=[1, 9]), ValueError, "ragged row 1 is [0, 9); allowed is within [0, 5)"),
        (lambda m: sl.top_k(m, 1, ends=[1]), ValueError, "ends is of shape [1]; allowed is [2], one a row"),
        (lambda m: sl.top_k(m, 1, ends=[[1], [2]]), TypeError, "ends is a list of other things; allowed is integers"),
        (lambda m: sl.top_k(m, 1, ends=[0.5, 1]), TypeError, "ends is a list of other things; allowed is integers"),
        (lambda m: sl.top_k(m, 1, ends=np.ones(2)), TypeError, "ends.dtype is float64; allowed is int64"),
        (lambda m: sl.top_k_mask(m, 9), ValueError, "k is 9; allowed is 1 to cols, which is 5"),
    ],
)
def test_bad_input_is_named(call, error, message):
    matrix = np.ones((2, 5), np.float32)
    with pytest.raises(error) as raised:
        call(matrix)
    assert isinstance(raised.value, sl.Error) and message in str(raised.value)


def test_explain_names_the_algorithm():
    assert "algorithm" in sl.explain_top_k(1000, 256, 32, device="cpu")
    assert "columns 3 apart" in sl.explain_top_k(1000, 256, 32, device="cpu", col_stride=3)
    with pytest.raises(sl.InvalidArgument, match="dtype is int8"):
        sl.explain_top_k(1000, 256, 32, dtype="int8")

"""sample on NumPy arrays, against the steps of docs/sampling.md written in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shortlist as sl
from data import BF16, same_bits
from reference import sample_row

DTYPES = [np.dtype("float32"), np.dtype("float16"), BF16]


def logits_of(rows, vocab, dtype, seed):
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocab))).astype(dtype)


def check(logits, got, per_row, what):
    for row, options in enumerate(per_row):
        token, kept, logprob = sample_row(logits[row], **options)
        where = f"{what}, row {row}: {options}"
        assert got.tokens[row] == token, where
        assert got.kept[row] == kept, where
        assert same_bits(got.logprobs[row], logprob), where
    assert not got.status.any()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_filters_of_every_kind(data):
    rows, vocab = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 80))
    logits = logits_of(rows, vocab, data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99)))
    draw = {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.5]),
        "top_k": st.integers(0, vocab + 1),
        "top_p": st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "offset": st.integers(0, 2**64 - 1),
    }
    per_row = [{name: data.draw(of) for name, of in draw.items()} for _ in range(rows)]
    order = data.draw(st.sampled_from(["first", "last"]))
    columns = {name: [options[name] for options in per_row] for name in draw}
    if data.draw(st.booleans()):  # the same for all rows
        per_row = [per_row[0]] * rows
        columns = per_row[0]
    got = sl.sample(logits, details=True, min_p_order=order, **columns)
    check(logits, got, [{**options, "min_p_first": order == "first"} for options in per_row], "filters")
    assert np.array_equal(sl.sample(logits, min_p_order=order, **columns), got.tokens)


def history(form, lists, width):
    if form == "lists":
        return lists
    if form == "padded":
        return np.array([row + [-1] * (width - len(row)) for row in lists], np.int64).reshape(len(lists), width)
    return sl.TokenRows(np.cumsum([0] + [len(row) for row in lists]), np.array(sum(lists, []), np.int32))


@pytest.mark.parametrize("form", ["lists", "padded", "TokenRows"])
def test_penalties(form):
    logits = logits_of(3, 20, np.float32, 1)
    prompt, generated = [[1, 2, 2], [], [5, 99, -3]], [[3, 3, 1], [7], []]
    for seed in range(20):
        got = sl.sample(logits, seed=seed, details=True, repetition_penalty=[1.3, 0.7, 1.1], presence_penalty=0.5,
                        frequency_penalty=np.array([0.25, 0, -1], np.float64), prompt=history(form, prompt, 3),
                        generated=history(form, generated, 3))  # fmt: skip
        check(logits, got, [{"seed": seed, "prompt": prompt[r], "generated": generated[r], "presence": 0.5,
                             "repetition": (1.3, 0.7, 1.1)[r], "frequency": (0.25, 0, -1)[r]} for r in range(3)],
              form)  # fmt: skip


def test_tokens_beyond_int32_are_outside_of_the_vocabulary():
    logits = np.array([[5.0, 4.0]], np.float32)
    for form in ([[2**32]], np.array([[2**32]])):
        assert sl.sample(logits, temperature=0, prompt=form, repetition_penalty=9).tolist() == [0]
    assert sl.sample(logits, temperature=0, prompt=[[0]], repetition_penalty=9).tolist() == [1]


def test_bias_of_every_form():
    logits = logits_of(4, 30, np.float32, 2)
    shared = np.linspace(-4, 4, 30, dtype=np.float32)
    each = logits_of(4, 60, np.float32, 3)
    for bias, of_row in [(shared, lambda r: shared), (each[:, :30], lambda r: each[r, :30]),
                         (each[:, ::2], lambda r: each[r, ::2]), (shared.astype("d"), lambda r: shared),
                         ({3: 6.0, 29: -1.5}, lambda r: np.eye(30)[3] * 6 - np.eye(30)[29] * 1.5)]:  # fmt: skip
        got = sl.sample(logits, seed=5, bias=bias, details=True)
        check(logits, got, [{"seed": 5, "bias": of_row(r)} for r in range(4)], f"bias {type(bias).__name__}")


def test_masks_of_every_form():
    logits = logits_of(3, 70, np.float32, 4)
    each = np.random.default_rng(5).random((3, 70)) < 0.4
    words = np.packbits(np.pad(each, ((0, 0), (0, 26))), axis=1, bitorder="little").view(np.int32)
    for mask, of_row in [(each, lambda r: each[r]), (each.astype(np.uint8), lambda r: each[r]),
                         (each[1], lambda r: each[1]), (words, lambda r: each[r]),
                         (words.view(np.uint32)[2], lambda r: each[2])]:  # fmt: skip
        got = sl.sample(logits, seed=6, allowed=mask, details=True)
        check(logits, got, [{"seed": 6, "allowed": of_row(r)} for r in range(3)], f"mask {mask.dtype} {mask.shape}")


def test_details_and_rows_that_cannot_be_drawn_from():
    logits = logits_of(4, 9, np.float32, 6)
    logits[1, 4] = np.nan
    logits[2] = -np.inf
    got = sl.sample(logits, top_p=[0.9, 0.9, 0.9, np.nan], details=True, top_n=3, index_dtype="int32")
    assert got.status.tolist() == [0, 1, 2, 3] and got.tokens.dtype == np.int32
    assert got.tokens[1:].tolist() == [-1, -1, -1] and np.isnan(got.logprobs[1:]).all()
    assert got.top_tokens[0].tolist() == np.argsort(-logits[0], kind="stable")[:3].tolist()
    assert (np.diff(got.top_logprobs[0]) <= 0).all() and got.top_tokens[1].tolist() == [-1, -1, -1]
    assert sl.sample(logits, details=True).top_tokens.shape == (4, 0)


def test_shapes_and_layouts():
    logits = logits_of(6, 40, np.float32, 7)
    expected = sl.sample(logits, seed=range(6))
    assert np.array_equal(sl.sample(np.asfortranarray(logits), seed=range(6)), expected)
    assert np.array_equal(sl.sample(logits.reshape(2, 3, 40), seed=range(6)), expected.reshape(2, 3))
    one = sl.sample(logits[0])
    assert one.shape == () and one == expected[0]
    assert sl.sample(np.zeros((0, 4), np.float32)).shape == (0,)


def test_draws_follow_the_distribution():
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    logits = np.broadcast_to(np.log(probabilities).astype(np.float32), (20000, 4))
    shares = np.bincount(sl.sample(logits, offset=np.arange(20000)), minlength=4) / 20000
    assert np.abs(shares - probabilities).max() < 0.015  # four standard deviations of the largest


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": -1.0}, ValueError, "temperature is -1; allowed is 0 or more, and finite"),
        ({"temperature": np.float32("inf")}, ValueError, "temperature is inf; allowed is 0 or more"),
        ({"temperature": "hot"}, TypeError, "temperature is a str; allowed is an array"),
        ({"temperature": [1.0]}, ValueError, "temperature is of shape [1]; allowed is [2], one a row"),
        ({"min_p": 2}, ValueError, "min_p is 2; allowed is 0 to 1"),
        ({"top_k": 1.5}, ValueError, "top_k is 1.5; allowed is -2^31 to 2^31 - 1"),
        ({"top_k": np.array([1.5, 2])}, TypeError, "top_k.dtype is float64; allowed is int32, or other integers"),
        ({"seed": -1}, ValueError, "seed is -1; allowed is 0 to 2^64 - 1"),
        ({"seed": [0, 2**64]}, ValueError, "seed has integers that are too large; allowed is what uint64 holds"),
        ({"offset": [0.5, 1]}, TypeError, "offset is a list of other things; allowed is integers"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty is 0; allowed is above 0"),
        ({"min_p_order": "middle"}, ValueError, "min_p_order is middle; allowed is last or first"),
        ({"prompt": [[1]]}, ValueError, "prompt is a list of 1; allowed is one of 2, a list for each row"),
        ({"prompt": [[1], [0.5]]}, TypeError, "prompt is a list of other things; allowed is integers"),
        ({"prompt": 7}, TypeError, "prompt is a int; allowed is a list of lists of integers"),
        ({"prompt": np.ones((3, 1), int)}, ValueError, "prompt is of shape [3, 1]; allowed is [2, n]"),
        ({"generated": sl.TokenRows([0, 1], [5])}, ValueError, "generated.begins is of shape [2]; allowed is [3]"),
        ({"generated": sl.TokenRows([0, 1, 9], [5])}, ValueError, "generated.begins[2] is 9; allowed is up to 1"),
        ({"generated": sl.TokenRows([0, 2, 1], [5, 6])}, ValueError, "generated.begins[2] is 1"),
        ({"bias": np.ones(3, "f")}, ValueError, "bias is of shape [3]; allowed is [5] for all rows, or [2, 5]"),
        ({"bias": {5: 1.0}}, ValueError, "bias has token 5; allowed is 0 to 4"),
        ({"allowed": np.ones(5)}, TypeError, "allowed.dtype is float64; allowed is bool or uint8"),
        ({"allowed": np.ones((3, 5), bool)}, ValueError, "allowed is of shape [3, 5]; allowed is [5] for all rows"),
        ({"top_n": 513, "details": True}, ValueError, "top_n is 513; allowed is 0 to 512"),
        ({"top_n": 1}, ValueError, "top_n is 1; allowed is 0 without details=True"),
        ({"index_dtype": "u8"}, ValueError, "index_dtype is u8; allowed is int32 or int64"),
    ],
)
def test_bad_input_is_named(options, error, message):
    with pytest.raises(error) as raised:
        sl.sample(np.zeros((2, 5), np.float32), **options)
    assert isinstance(raised.value, sl.Error) and message in str(raised.value)


def test_logits_of_another_dtype():
    with pytest.raises(ValueError, match="logits.type is f64; allowed is f32, f16 or bf16"):
        sl.sample(np.zeros((2, 5)))
    with pytest.raises(TypeError, match="logits.dtype is int64"):
        sl.sample(np.zeros((2, 5), int))
    with pytest.raises(ValueError, match="logits.cols is 0"):
        sl.sample(np.zeros((2, 0), np.float32))


def test_explain_names_the_algorithm():
    assert "algorithm" in sl.explain_sample(4, 1000, device="cpu", top_k=50)

"""Rows of every kind that a selection may stumble over, and the dtypes that they come in."""

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
VALUE_DTYPES = [np.dtype("float32"), np.dtype("float16"), BF16, np.dtype("float64")]
ELEMENT_DTYPES = [np.dtype("float32"), np.dtype("float16"), BF16, np.dtype("int8"), np.dtype("uint8")]


def _huge(random, shape):
    values = random.standard_normal(shape)
    values[..., 0] = 6e4
    return values


DISTRIBUTIONS = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "all equal": lambda random, shape: np.full(shape, 0.75),
    "90 % ties": lambda random, shape: np.where(random.random(shape) < 0.9, 0.5, random.standard_normal(shape)),
    "ascending": lambda random, shape: np.broadcast_to(np.arange(shape[-1], dtype=float), shape),
    "descending": lambda random, shape: np.broadcast_to(-np.arange(shape[-1], dtype=float), shape),
    "narrow band": lambda random, shape: 1 + random.integers(0, 3, shape) * 2.0**-7,
    "infinities": lambda random, shape: random.choice([np.inf, -np.inf, 0.0, 1.0, -2.0], shape),
    "NaN": lambda random, shape: random.choice([np.nan, -np.inf, 3.0, np.inf, -1.0], shape),
    "zeros of both signs": lambda random, shape: random.choice([0.0, -0.0], shape),
    "denormals": lambda random, shape: random.integers(-9, 9, shape) * 2.0**-24,
    "one huge value": _huge,
}


def rows(name, shape, dtype, seed):
    random = np.random.default_rng(seed)
    return DISTRIBUTIONS[name](random, shape).astype(dtype)


def same_bits(got, expected):
    got, expected = np.asarray(got), np.asarray(expected)
    return got.dtype == expected.dtype and got.shape == expected.shape and got.tobytes() == expected.tobytes()

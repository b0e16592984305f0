"""Arguments that people write in several ways, brought into the one way that the compiled part reads."""

import operator

import numpy as np

from ._core import InvalidArgument, WrongType
from ._results import TokenRows


def _counts_like(array, count):
    """0 to count - 1, of the library and on the device of `array`."""
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        import torch

        return torch.arange(count, device=array.device)
    if library == "cupy":
        import cupy

        with array.device:
            return cupy.arange(count)
    if isinstance(array, np.ndarray):
        return np.arange(count)
    return array.__array_namespace__().arange(count, device=array.device)


def integers(values, argument, dtype):
    """A list of integers as an array; NumPy alone would take large ones for floats, and cut floats off."""
    try:
        return np.array([operator.index(value) for value in values], dtype)
    except TypeError as problem:
        raise WrongType(f"{argument} is a list of other things; allowed is integers") from problem
    except OverflowError as problem:
        raise InvalidArgument(f"{argument} has integers that are too large; allowed is what {dtype} holds") from problem


def token_rows(tokens, argument, rows):
    """TokenRows as they are; an array [rows, n]; or a list of lists."""
    if isinstance(tokens, TokenRows):
        return tokens
    if hasattr(tokens, "ndim") and hasattr(tokens, "reshape"):
        if tokens.ndim != 2 or tokens.shape[0] != rows:
            raise InvalidArgument(
                f"{argument} is of shape {list(tokens.shape)}; allowed is [{rows}, n], padded with -1, "
                "a list of lists, or TokenRows"
            )
        return _counts_like(tokens, rows + 1) * tokens.shape[1], tokens.reshape(-1)
    if not isinstance(tokens, (list, tuple)):
        raise WrongType(f"{argument} is a {type(tokens).__name__}; allowed is a list of lists of integers")
    lists = [row if isinstance(row, np.ndarray) else integers(row, argument, "int64") for row in tokens]
    if len(lists) != rows:
        raise InvalidArgument(f"{argument} is a list of {len(lists)}; allowed is one of {rows}, a list for each row")
    begins = np.zeros(rows + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=begins[1:])
    return begins, np.concatenate([*lists, np.zeros(0, np.int64)])


def bias(values, vocab):
    """A map of tokens to what is added to their logits, as an array [vocab]; anything else as it is."""
    if not isinstance(values, dict):
        return values
    added = np.zeros(vocab, np.float32)
    for token, value in values.items():
        if not 0 <= token < vocab:
            raise InvalidArgument(f"bias has token {token}; allowed is 0 to {vocab - 1}")
        added[token] = value
    return added

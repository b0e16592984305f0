"""Arguments that people write in several ways, brought into the one way that the compiled part reads."""

import numpy as np

from ._core import InvalidArgument, WrongType
from ._results import TokenRows


def _counts_like(array, count):
    """0 to count - 1, int64, of the library and on the device of `array`."""
    if isinstance(array, np.ndarray):
        return np.arange(count, dtype=np.int64)
    if type(array).__module__.startswith("torch"):
        return array.new_ones(count, dtype=_torch_int64(array)).cumsum(0) - 1
    space = array.__array_namespace__()
    return space.arange(count, dtype=space.int64, device=array.device)


def _torch_int64(tensor):
    import torch

    return torch.int64


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
    try:
        lists = [np.asarray(row if len(row) else [0][:0], dtype=np.int64) for row in tokens]
    except (TypeError, ValueError) as problem:
        raise WrongType(f"{argument} is a {type(tokens).__name__}; allowed is a list of lists of integers") from problem
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

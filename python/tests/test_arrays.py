"""The arrays of other libraries on the CPU: the same memory in, the same kind out."""

import numpy as np
import pytest

import shortlist as sl
from data import rows
from reference import top_k as reference_top_k


class Exported:
    """An array that nothing is known of but DLPack."""

    def __init__(self, array, old=False):
        self.array, self.old = array, old

    def __dlpack__(self, **options):
        if self.old and "max_version" in options:
            raise TypeError("max_version is not known")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_alone_is_enough(old):
    matrix = rows("normal", (5, 12), np.float32, 1)
    for layout in (matrix, matrix[:, ::2], matrix[::2]):
        result = sl.top_k(Exported(layout, old), 3)
        values, indices = reference_top_k(layout, 3)
        assert np.array_equal(np.from_dlpack(result.values), values)
        assert np.array_equal(np.from_dlpack(result.indices), indices)


def test_dlpack_frees_what_it_was_lent():
    import sys

    matrix = np.zeros((4, 4), np.float32)
    lent = Exported(matrix)
    before = sys.getrefcount(matrix)
    for _ in range(100):
        sl.top_k(lent, 1)
    assert sys.getrefcount(matrix) == before


def test_dlpack_on_another_device_is_refused():
    class Elsewhere(Exported):
        def __dlpack_device__(self):
            return (8, 0)

    with pytest.raises(sl.WrongType, match="matrix is on DLPack's device type 8; allowed is an array on the CPU or an"):
        sl.top_k(Elsewhere(np.zeros((1, 1), np.float32)), 1)


def test_numpy_results_own_their_memory():
    result = sl.top_k(np.ones((3, 4), np.float32), 2)
    assert type(result.values) is np.ndarray and result.values.flags.owndata and result.values.flags.writeable


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def test_torch_tensors(torch):
    matrix = torch.randn(6, 30)
    index = sl.FlatIndex(30, device="cpu")
    index.add(matrix)
    for layout in (matrix, matrix.t(), matrix[:, ::3], matrix.expand(2, 6, 30), matrix.bfloat16(), matrix.double(),
                   torch.nn.Parameter(matrix), matrix[2], torch.complex(matrix, matrix).conj().imag):  # fmt: skip
        result = sl.top_k(layout, 3)
        assert type(result.values) is torch.Tensor and result.values.dtype == layout.dtype
        expected = reference_top_k(layout.detach().double().numpy(), 3)[1]
        assert np.array_equal(result.indices.numpy(), expected) and result.indices.dtype == torch.int64
        assert torch.equal(result.values, layout.detach().take_along_dim(result.indices, -1))
    scores, ids = index.search(matrix.half(), 2)
    assert scores.dtype == torch.float32 and ids[:, 0].tolist() == list(range(6))
    assert index.search(matrix[0], 2).ids.shape == (2,)


def test_torch_sampling(torch):
    logits = torch.randn(4, 50)
    options = {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.5}
    history = torch.randint(0, 50, (4, 7))
    got = sl.sample(logits, seed=torch.arange(4), prompt=history, allowed=torch.ones(50, dtype=torch.bool), **options)
    assert type(got) is torch.Tensor and got.dtype == torch.int64
    assert got.tolist() == sl.sample(logits.numpy(), seed=range(4), prompt=history.tolist(), **options).tolist()


def test_torch_tensors_that_have_no_memory(torch):
    with pytest.raises(sl.WrongType, match="matrix is a tensor on meta; allowed is one on cpu or cuda"):
        sl.top_k(torch.empty(2, 2, device="meta"), 1)
    with pytest.raises(sl.WrongType, match="matrix.dtype is int64"):
        sl.top_k(torch.zeros(2, 2, dtype=torch.int64), 1)
    assert sl.FlatIndex(4, dtype=torch.int8, device=torch.device("cpu")).dtype == "int8"


def test_jax_arrays():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jnp = jax.numpy
    matrix = jax.device_put(rows("normal", (5, 12), np.float32, 2), jax.devices("cpu")[0])
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        result = sl.top_k(matrix.astype(dtype), 3)
        assert isinstance(result.values, jax.Array) and result.values.dtype == dtype
        values, indices = reference_top_k(np.asarray(matrix.astype(dtype)), 3)
        assert np.array_equal(np.asarray(result.indices), indices)
        assert np.asarray(result.values).tobytes() == values.tobytes()
    index = sl.FlatIndex(12, device="cpu")
    index.add(matrix)
    assert isinstance(index.search(matrix, 1).ids, jax.Array)
    assert index.search(matrix, 1).ids[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_jax_arrays_that_jax_will_not_make_wide_enough():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.config.jax_enable_x64:
        pytest.skip("this JAX makes 64-bit arrays")
    matrix, tokens = jax.device_put((np.ones((2, 8), np.float32), np.zeros((2, 3), np.int32)), jax.devices("cpu")[0])
    with pytest.raises(sl.WrongType, match="prompt.begins is made int32 by its library, which was asked for int64"):
        sl.sample(matrix, prompt=tokens, repetition_penalty=2.0)

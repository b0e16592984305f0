"""shortlist.torch on the CPU: gradients, torch.compile, and torch.topk's signature."""

import pickle

import numpy as np
import pytest

import shortlist as sl

try:
    import torch

    import shortlist.torch as slt
except ImportError:
    torch = None

pytestmark = pytest.mark.skipif(torch is None, reason="torch is not installed")


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradients():
    for options in ({}, {"largest": False}, {"sorted": False}):
        assert torch.autograd.gradcheck(lambda x: slt.top_k(x, 3, **options).values, doubles(4, 7))
    assert torch.autograd.gradgradcheck(lambda x: slt.top_k(x, 3).values ** 2, doubles(4, 7))
    assert torch.autograd.gradcheck(slt.MaxK(3), doubles(2, 3, 7))
    assert torch.autograd.gradcheck(slt.MaxK(3), doubles(7, 4).t())
    assert torch.autograd.gradgradcheck(lambda x: slt.MaxK(3)(x) ** 2, doubles(4, 7))
    assert torch.autograd.gradcheck(lambda x: slt.topk(x, 2, dim=0).values, doubles(5, 3))


def test_the_gradient_goes_to_what_an_early_stop_kept():
    x = torch.randn(50, 128, requires_grad=True)
    values, indices = slt.top_k(x, 16, max_iter=3, sorted=False)
    values.sum().backward()
    expected = torch.zeros(50, 128).scatter(-1, indices, 1.0)
    assert torch.equal(x.grad, expected) and not indices.requires_grad
    assert not torch.equal(indices.sort().values, x.topk(16).indices.sort().values)


def test_operators_are_well_formed():
    for x in (torch.randn(3, 9, requires_grad=True), torch.randn(2, 3, 9), torch.randn(9, 3).t()):
        torch.library.opcheck(torch.ops.shortlist.top_k, (x, 4, True, True, None, None))
        torch.library.opcheck(torch.ops.shortlist.top_k_mask, (x.detach(), 4, True, None, 5))


def test_whole_under_compile():
    def step(x):
        values, indices = slt.top_k(x * 2, 3)
        return values.sum() + slt.MaxK(2)(x).sum() + indices.sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    x, y = torch.randn(5, 11, requires_grad=True), None
    y = x.detach().clone().requires_grad_()
    step(x).backward()
    compiled(y).backward()
    assert torch.equal(x.grad, y.grad)


def test_max_k_keeps_k_values_and_infinities_do_no_harm():
    x = torch.tensor([[1.0, -torch.inf, 3.0, 2.0], [torch.inf, 5.0, 0.0, -1.0]])
    assert slt.MaxK(2)(x).tolist() == [[0, 0, 3, 2], [torch.inf, 5, 0, 0]]
    assert repr(slt.MaxK(32, max_iter=4)) == "MaxK(k=32, max_iter=4)"
    assert repr(pickle.loads(pickle.dumps(slt.MaxK(5)))) == "MaxK(k=5)"
    random = torch.randn(100, 64)
    early = slt.MaxK(8, max_iter=2)
    assert ((early(random) != 0).sum(-1) == 8).all()
    assert torch.equal(early(random) != 0, sl.top_k_mask(random, 8, max_iter=2))
    assert torch.equal(torch.compile(early, fullgraph=True, backend="aot_eager")(random), early(random))


@pytest.mark.parametrize("dim", [-1, 0, 1, -2])
def test_topk_as_torch_has_it(dim):
    x = torch.randn(6, 8, 5)
    for options in ({}, {"largest": False}, {"sorted": True, "largest": True}):
        got, expected = slt.topk(x, 3, dim=dim, **options), torch.topk(x, 3, dim=dim, **options)
        assert torch.equal(got.values, expected.values) and torch.equal(got.indices, expected.indices)
    with pytest.raises(sl.InvalidArgument):
        slt.topk(torch.tensor(1.0), 1)
    with pytest.raises(IndexError):
        slt.topk(x, 1, dim=3)


def test_autocast_leaves_the_dtype_alone():
    x = torch.randn(3, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert slt.top_k(x, 2).values.dtype == torch.float32
        assert slt.MaxK(2)(x).dtype == torch.float32


def test_errors_are_the_same_as_elsewhere():
    with pytest.raises(sl.InvalidArgument, match="k is 10; allowed is 1 to cols, which is 9"):
        slt.top_k(torch.randn(3, 9), 10)
    with pytest.raises(sl.WrongType, match="matrix.dtype is int64"):
        slt.top_k(torch.zeros(3, 9, dtype=torch.int64), 1)
    assert np.array_equal(slt.top_k(torch.eye(3), 1).indices.numpy(), [[0], [1], [2]])

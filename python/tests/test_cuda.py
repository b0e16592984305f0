"""Arrays on a GPU: the same bits as on the CPU, on the framework's current stream, in order, and never copied to the host.

Each test runs with torch, CuPy and JAX as far as the machine has them.
"""

import gc
import importlib
import subprocess
import sys

import numpy as np
import pytest

import shortlist as sl
from data import rows, same_bits

pytestmark = pytest.mark.skipif(len(sl.devices()) < 2, reason="there is no GPU")


class Torch:
    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="torch is not installed")
        if not self.torch.cuda.is_available():
            pytest.skip("this torch has no CUDA")

    def put(self, array):
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16).copy()).view(self.torch.bfloat16).cuda()
        return self.torch.from_numpy(np.ascontiguousarray(array)).cuda()

    def get(self, array):
        assert type(array) is self.torch.Tensor and array.is_cuda
        if array.dtype == self.torch.bfloat16:
            return array.cpu().view(self.torch.int16).numpy()
        return array.cpu().numpy()


class CuPy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

    def put(self, array):
        if array.dtype.name == "bfloat16":
            pytest.skip("CuPy has no bfloat16 of NumPy's")
        return self.cupy.asarray(array)

    def get(self, array):
        assert isinstance(array, self.cupy.ndarray)
        return array.get()


class Jax:
    def __init__(self):
        self.jax = pytest.importorskip("jax", reason="JAX is not installed")
        try:
            self.device = self.jax.devices("cuda")[0]
        except RuntimeError:
            pytest.skip("this JAX has no CUDA")

    def put(self, array):
        if array.dtype == np.float64:
            pytest.skip("JAX has no float64 unless the whole program asks for it")
        return self.jax.device_put(array, self.device)

    def get(self, array):
        assert isinstance(array, self.jax.Array) and array.device.platform == "gpu"
        return np.asarray(array)


@pytest.fixture(params=[Torch, CuPy, Jax], ids=["torch", "cupy", "jax"])
def library(request):
    return request.param()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_top_k_has_the_bits_of_the_cpu(library, dtype):
    from data import BF16

    for seed, (shape, k) in enumerate([((3, 7), 7), ((400, 256), 32), ((2, 3, 5000), 60), ((1, 300000), 100)]):
        matrix = rows("90 % ties", shape, BF16 if dtype == "bfloat16" else np.dtype(dtype), seed)
        expected = sl.top_k(matrix, k)
        got = sl.top_k(library.put(matrix), k)
        assert library.get(got.values).tobytes() == expected.values.tobytes()
        assert np.array_equal(library.get(got.indices), expected.indices)
        mask = library.get(sl.top_k_mask(library.put(matrix), k))
        assert np.array_equal(mask, sl.top_k_mask(matrix, k))


def test_views_are_read_in_place(library):
    matrix = rows("normal", (60, 90), np.float32, 1)
    device = library.put(matrix)
    for view in (lambda m: m[::2], lambda m: m[:, 5:50], lambda m: m.T, lambda m: m[3]):
        assert np.array_equal(library.get(sl.top_k(view(device), 9).indices), sl.top_k(view(matrix), 9).indices)


@pytest.mark.parametrize("metric", ["cosine", "inner_product", "l2"])
def test_search_has_the_bits_of_the_cpu(library, metric):
    x, q = rows("normal", (5000, 96), np.float32, 2), rows("normal", (20, 96), np.float32, 3)
    cpu, gpu = sl.FlatIndex(96, metric, device="cpu"), sl.FlatIndex(96, metric, device="cuda")
    cpu.add(x)
    gpu.add(library.put(x[:3000]))
    gpu.add(x[3000:])
    assert len(gpu) == 5000 and gpu.device == "cuda:0"
    expected = cpu.search(q, 11)
    got = gpu.search(library.put(q), 11)
    assert same_bits(library.get(got.scores), expected.scores)
    assert np.array_equal(library.get(got.ids), expected.ids)
    assert same_bits(gpu.search(q, 11).scores, expected.scores)  # host in, host out
    half = gpu.search(library.put(q.astype(np.float16)), 11)
    assert same_bits(library.get(half.scores), cpu.search(q.astype(np.float16), 11).scores)


def test_sample_has_the_bits_of_the_cpu(library):
    logits = rows("normal", (32, 4000), np.float32, 4)
    temperature = np.linspace(0, 2, 32, dtype=np.float32)
    bias = rows("normal", (4000,), np.float32, 5)
    allowed = np.random.default_rng(6).random((32, 4000)) < 0.7
    prompt = np.random.default_rng(7).integers(0, 4000, (32, 9)).astype(np.int32)
    options = {"top_k": 60, "top_p": 0.95, "seed": 3, "repetition_penalty": 1.2, "details": True, "top_n": 4}
    expected = sl.sample(logits, temperature=temperature, bias=bias, allowed=allowed, prompt=prompt, **options)
    put = library.put
    if isinstance(library, Jax):  # whose tokens' borders would be int32
        prompt = None
        expected = sl.sample(logits, temperature=temperature, bias=bias, allowed=allowed, **options)
    got = sl.sample(put(logits), temperature=put(temperature), bias=put(bias), allowed=put(allowed),
                    prompt=None if prompt is None else put(prompt), **options)  # fmt: skip
    for name in expected._fields:
        a, b = library.get(getattr(got, name)), getattr(expected, name)
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name


def test_a_gpu_array_and_an_index_on_the_cpu(library):
    index = sl.FlatIndex(4, device="cpu")
    for call in (index.add, index.search):
        with pytest.raises(sl.InvalidArgument, match="is on cuda:0; allowed is an array in host memory"):
            call(library.put(np.ones((1, 4), np.float32)))
    with pytest.raises(sl.InvalidArgument, match="temperature is on cpu; allowed is an array on cuda:0"):
        sl.sample(library.put(np.zeros((2, 4), np.float32)), temperature=np.ones(2, np.float32))
    with pytest.raises(sl.InvalidArgument, match="ids is on cuda:0"):
        sl.FlatIndex(4, device="cuda").add(np.ones((1, 4), np.float32), ids=library.put(np.ones(1, np.int32)))


def slow_work(torch, tensor):
    """Some milliseconds of work that ends with `tensor` holding what it is to hold."""
    wide = torch.randn(3000, 3000, device="cuda")
    for _ in range(20):
        wide = wide @ wide
        wide = wide / wide.abs().max()
    tensor.copy_(torch.arange(tensor.numel(), device="cuda", dtype=tensor.dtype).reshape(tensor.shape))


@pytest.fixture
def torch():
    return Torch().torch


def test_work_runs_on_the_current_stream_of_torch(torch):
    stream = torch.cuda.Stream()
    expected = list(range(99999, 99989, -1))
    for call in (lambda x: sl.top_k(x, 10).indices, lambda x: sl.top_k_mask(x, 10).nonzero()[:, 0].flip(0)):
        x = torch.zeros(100000, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            slow_work(torch, x)
            result = call(x)  # on another stream it would see the zeros
        stream.synchronize()
        assert result.tolist() == expected
    index = sl.FlatIndex(8, "inner_product", device="cuda")
    index.add(torch.eye(8, device="cuda"))
    q = torch.zeros(1, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        slow_work(torch, q)
        ids = index.search(q, 1).ids
    stream.synchronize()
    assert ids.tolist() == [[7]]


def test_work_runs_on_the_current_stream_of_cupy():
    cupy = CuPy().cupy
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(1000000, cupy.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(50):
            cupy.sort(cupy.random.rand(1000000))
        x += cupy.arange(1000000, dtype=cupy.float32)
        indices = sl.top_k(x, 3).indices
    stream.synchronize()
    assert indices.tolist() == [999999, 999998, 999997]


def test_the_call_returns_before_the_work_is_done(torch):
    x = torch.zeros(1 << 20, device="cuda")
    sl.top_k(x, 10)
    done = torch.cuda.Event()
    torch.cuda.synchronize()
    slow_work(torch, x)
    sl.top_k(x, 10)
    done.record()
    assert not done.query()
    done.synchronize()


def test_arrays_freed_while_the_stream_still_works(torch):
    results = []
    for i in range(50):
        x = torch.full((64, 4096), -1.0, device="cuda")
        if i == 0:
            slow_work(torch, x)
        x[:, i] = 5.0
        results.append(sl.top_k(x, 1).indices)
        del x  # its memory may be reused, by later work of the same stream
        torch.full((64, 4096), 9.0, device="cuda")
    for i, indices in enumerate(results[1:], 1):
        assert (indices == i).all()
    gc.collect()


def test_captured_in_a_cuda_graph(torch):
    x = torch.randn(512, 1000, device="cuda")
    sl.top_k(x, 8), sl.sample(x, seed=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = sl.top_k(x, 8)
        tokens = sl.sample(x, seed=1)
    for seed in range(3):
        x.copy_(torch.randn(512, 1000, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        expected = sl.top_k(x, 8)
        assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)
        assert torch.equal(tokens, sl.sample(x, seed=1))


def test_the_torch_operator(torch):
    slt = importlib.import_module("shortlist.torch")
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    torch.library.opcheck(torch.ops.shortlist.top_k, (x, 32, True, False, None, None))
    compiled = torch.compile(lambda t: slt.MaxK(32)(t * 2).square().sum(), fullgraph=True)
    compiled(x).backward()
    kept = slt.MaxK(32)(x.detach()) != 0
    assert torch.equal(x.grad != 0, kept)


def test_memory_of_the_gpu_stays_as_it_was(torch):
    index = sl.FlatIndex(64, device="cuda")
    index.add(torch.randn(5000, 64, device="cuda"))
    q = torch.randn(8, 64, device="cuda")
    index.search(q, 10)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(10000):
        index.search(q, 10)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before


def test_the_interpreter_ends_with_gpu_objects_alive():
    script = """
import shortlist as sl, numpy as np
index = sl.FlatIndex(16, device="cuda")
index.add(np.ones((100, 16), np.float32))
index.search(np.ones((2, 16), np.float32))
try:
    import torch
    q = torch.ones(2, 16, device="cuda")
    result, top = index.search(q), sl.top_k(q, 3)
except ImportError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == ""


def test_a_gpu_that_is_not_there():
    with pytest.raises(sl.InvalidArgument, match="CUDA ordinal is 99"):
        sl.FlatIndex(4, device="cuda:99")


def test_an_ivf_pq_index_there_answers_as_one_on_the_cpu(library):
    vectors = rows("normal", (2000, 24), np.dtype("float32"), 8)
    queries = rows("normal", (5, 24), np.dtype("float32"), 9)
    found = []
    for device in ("cpu", "cuda"):
        index = sl.IvfPqIndex(24, "l2", device=device, nlist=16, pq_bits=5, keep="host")
        index.train(vectors, iterations=3)
        index.add(vectors[:700])
        index.add(vectors[700:] if device == "cpu" else library.put(vectors[700:]))
        for refine_ratio in (0, 3):
            found.append(index.search(queries if device == "cpu" else library.put(queries), 7, 4, refine_ratio))
    for on_cpu, on_gpu in zip(found[:2], found[2:]):
        assert np.array_equal(library.get(on_gpu.ids), on_cpu.ids)
        assert same_bits(library.get(on_gpu.scores), on_cpu.scores)
    index = sl.IvfPqIndex(24, device="cuda", nlist=16, pq_bits=5)
    with pytest.raises(sl.InvalidArgument, match="vectors is on cuda:0; allowed is an array in host memory"):
        index.train(library.put(vectors))

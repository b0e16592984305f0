import os
from typing import Any, Literal, overload

import numpy
from numpy.typing import NDArray

# The type of NumPy's arrays holds their dtype, which results do not share: so they have overloads of their own.
from ._results import (
    Array,
    Device,
    IvfPqMemory,
    ListStatistics,
    MemoryUse,
    SampleResult,
    SearchResult,
    SearchStats,
    Suggestion,
    TopK,
    TuneResult,
)

__version__: str

class Error(Exception): ...
class InvalidArgument(Error, ValueError): ...
class WrongType(Error, TypeError): ...
class Unsupported(Error, RuntimeError): ...
class OutOfMemory(Error, MemoryError): ...
class CorruptFile(Error, ValueError): ...
class IoError(Error, OSError): ...
class CudaError(Error, RuntimeError): ...

class FlatIndex:
    def __init__(
        self,
        dim: int,
        metric: str = "cosine",
        device: object = None,
        dtype: object = "float32",
        storage: str = "full",
    ) -> None: ...
    @staticmethod
    def load(path: str | os.PathLike[str], device: object = None, verify: bool = True) -> FlatIndex: ...
    def add(self, vectors: object, ids: object = None) -> None: ...
    @overload
    def search(self, queries: NDArray[Any], k: int = 10) -> SearchResult[NDArray[Any]]: ...
    @overload
    def search(self, queries: Array, k: int = 10) -> SearchResult[Array]: ...
    def reserve(self, max_rows: int, max_queries: int = 1, max_k: int = 10, concurrency: int = 1) -> None: ...
    def read(self, first: int = 0, count: int | None = None) -> numpy.ndarray: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def explain(self, k: int = 10, queries: int = 1) -> str: ...
    def __len__(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def storage(self) -> str: ...
    @property
    def search_stats(self) -> SearchStats: ...
    @property
    def memory(self) -> MemoryUse: ...

class IvfPqIndex:
    def __init__(
        self,
        dim: int,
        metric: str = "cosine",
        device: object = None,
        dtype: object = "float32",
        *,
        nlist: int = 1024,
        code: str = "pq",
        pq_dim: int = 0,
        pq_bits: int = 8,
        encodes: str = "residual",
        rotation: str = "none",
        keep: str = "none",
        seed: int = 0,
    ) -> None: ...
    @staticmethod
    def load(
        path: str | os.PathLike[str],
        device: object = None,
        verify: bool = True,
        rows: bool = True,
        map_rows: bool = False,
    ) -> IvfPqIndex: ...
    def train(self, vectors: object, iterations: int = 10, rows_per_list: int = 64) -> None: ...
    def add(self, vectors: object, ids: object = None) -> None: ...
    @overload
    def search(
        self, queries: NDArray[Any], k: int = 10, nprobe: int | None = None, refine_ratio: int = 0
    ) -> SearchResult[NDArray[Any]]: ...
    @overload
    def search(
        self, queries: Array, k: int = 10, nprobe: int | None = None, refine_ratio: int = 0
    ) -> SearchResult[Array]: ...
    def tune(self, queries: object, recall: float = 0.95, k: int = 10, truth: object = None) -> TuneResult: ...
    def reserve(self, max_rows: int) -> None: ...
    def clear(self) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def append_to(self, path: str | os.PathLike[str]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nlist(self) -> int: ...
    @property
    def pq_dim(self) -> int: ...
    @property
    def pq_bits(self) -> int: ...
    @property
    def is_trained(self) -> bool: ...
    @property
    def memory(self) -> IvfPqMemory: ...
    @property
    def lists(self) -> ListStatistics: ...

def suggest(
    rows: int,
    dim: int,
    memory_bytes: int,
    recall: float = 0.95,
    *,
    dtype: object = "float32",
    read_bytes_per_second: float = 2e12,
) -> Suggestion: ...
def devices() -> list[Device]: ...
@overload
def top_k(
    matrix: NDArray[Any],
    k: int,
    *,
    largest: bool = True,
    sorted: bool = True,
    eps: float | None = None,
    max_iter: int | None = None,
    begins: object = None,
    ends: object = None,
    index_dtype: str = "int64",
) -> TopK[NDArray[Any]]: ...
@overload
def top_k(
    matrix: Array,
    k: int,
    *,
    largest: bool = True,
    sorted: bool = True,
    eps: float | None = None,
    max_iter: int | None = None,
    begins: object = None,
    ends: object = None,
    index_dtype: str = "int64",
) -> TopK[Array]: ...
@overload
def top_k_mask(
    matrix: NDArray[Any],
    k: int,
    *,
    largest: bool = True,
    eps: float | None = None,
    max_iter: int | None = None,
    begins: object = None,
    ends: object = None,
) -> NDArray[Any]: ...
@overload
def top_k_mask(
    matrix: Array,
    k: int,
    *,
    largest: bool = True,
    eps: float | None = None,
    max_iter: int | None = None,
    begins: object = None,
    ends: object = None,
) -> Array: ...
def explain_top_k(
    rows: int,
    cols: int,
    k: int,
    *,
    device: object = None,
    dtype: str = "float32",
    sorted: bool = True,
    early_stop: bool = False,
    mask: bool = False,
    index_dtype: str = "int64",
    col_stride: int = 1,
) -> str: ...
@overload
def sample(
    logits: NDArray[Any],
    *,
    temperature: object = 1.0,
    top_k: object = 0,
    top_p: object = 1.0,
    min_p: object = 0.0,
    seed: object = 0,
    offset: object = 0,
    min_p_order: str = "last",
    repetition_penalty: object = 1.0,
    presence_penalty: object = 0.0,
    frequency_penalty: object = 0.0,
    prompt: object = None,
    generated: object = None,
    bias: object = None,
    allowed: object = None,
    details: Literal[False] = False,
    top_n: int = 0,
    index_dtype: str = "int64",
) -> NDArray[Any]: ...
@overload
def sample(
    logits: Array,
    *,
    temperature: object = 1.0,
    top_k: object = 0,
    top_p: object = 1.0,
    min_p: object = 0.0,
    seed: object = 0,
    offset: object = 0,
    min_p_order: str = "last",
    repetition_penalty: object = 1.0,
    presence_penalty: object = 0.0,
    frequency_penalty: object = 0.0,
    prompt: object = None,
    generated: object = None,
    bias: object = None,
    allowed: object = None,
    details: Literal[False] = False,
    top_n: int = 0,
    index_dtype: str = "int64",
) -> Array: ...
@overload
def sample(
    logits: NDArray[Any],
    *,
    temperature: object = 1.0,
    top_k: object = 0,
    top_p: object = 1.0,
    min_p: object = 0.0,
    seed: object = 0,
    offset: object = 0,
    min_p_order: str = "last",
    repetition_penalty: object = 1.0,
    presence_penalty: object = 0.0,
    frequency_penalty: object = 0.0,
    prompt: object = None,
    generated: object = None,
    bias: object = None,
    allowed: object = None,
    details: Literal[True],
    top_n: int = 0,
    index_dtype: str = "int64",
) -> SampleResult[NDArray[Any]]: ...
@overload
def sample(
    logits: Array,
    *,
    temperature: object = 1.0,
    top_k: object = 0,
    top_p: object = 1.0,
    min_p: object = 0.0,
    seed: object = 0,
    offset: object = 0,
    min_p_order: str = "last",
    repetition_penalty: object = 1.0,
    presence_penalty: object = 0.0,
    frequency_penalty: object = 0.0,
    prompt: object = None,
    generated: object = None,
    bias: object = None,
    allowed: object = None,
    details: Literal[True],
    top_n: int = 0,
    index_dtype: str = "int64",
) -> SampleResult[Array]: ...
def explain_sample(rows: int, vocab: int, *, device: object = None, dtype: str = "float32", top_k: int = 0) -> str: ...

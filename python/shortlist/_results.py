"""What the calls return, and the small types that they take."""

from typing import Generic, NamedTuple, TypeVar

Array = TypeVar("Array")
"""An array of NumPy, torch, CuPy, JAX or another library that speaks DLPack; results are of the same one."""


class Device(NamedTuple):
    """A place where rows live and searches run."""

    name: str
    """"cpu" or "cuda:0", as every argument `device` takes it."""
    description: str
    """For people: the processor's or GPU's name, its cores or memory, and the instruction set in use."""


class TopK(NamedTuple, Generic[Array]):
    """The k best of every row; both [..., k]."""

    values: Array
    indices: Array


class SearchResult(NamedTuple, Generic[Array]):
    """The k best rows of every query, best first; both [..., k]."""

    scores: Array
    ids: Array


class SampleResult(NamedTuple, Generic[Array]):
    """A token of every row, and how it came about."""

    tokens: Array
    """[...] integers; -1 where status is not 0."""
    status: Array
    """[...] uint8: 0 ok, 1 a NaN logit, 2 nothing allowed, 3 a parameter out of range."""
    logprobs: Array
    """[...] float32: of the token, natural, after temperature, before all filters."""
    kept: Array
    """[...] int32: how many tokens the filters left."""
    top_tokens: Array
    """[..., top_n] int32, best first, padded with -1."""
    top_logprobs: Array
    """[..., top_n] float32, padded with -inf."""


class MemoryUse(NamedTuple):
    """Bytes that an index holds, by purpose and place."""

    rows_bytes: int
    host_rows_bytes: int
    """Of those, what lies in the host's memory beside a GPU: all or nothing."""
    planes_bytes: int
    """Of the int8 copy, and on GPUs that of six bits, where `storage` asks for one."""
    norms_bytes: int
    ids_bytes: int
    workspaces_bytes: int
    device_allocations: int
    """Device and pinned allocations that the index has made so far."""


class SearchStats(NamedTuple):
    """What an index's searches made of its int8 copy; counts grow for as long as the index lives."""

    queries: int
    certified_queries: int
    """Answered through the copy; the others by reading all rows."""
    survivors: int
    """Rows of the certified queries whose score had to be computed; on a GPU perhaps those of others, too."""


class IvfPqMemory(NamedTuple):
    """Bytes that an IvfPqIndex holds, by purpose and place."""

    model_bytes: int
    """Centroids, codebook and what is made of them."""
    codes_bytes: int
    rows_bytes: int
    """Of kept rows."""
    host_rows_bytes: int
    """Of those, what lies in the host's memory beside a GPU."""
    mapped_rows_bytes: int
    """Of those, what is mapped from a file: all or nothing."""
    ids_bytes: int
    workspaces_bytes: int


class ListStatistics(NamedTuple):
    """How evenly rows spread over the lists of an IvfPqIndex."""

    lists: int
    empty: int
    smallest: int
    median: int
    largest: int
    imbalance: float
    """Rows that a search reads, over those of equal lists."""


class TunePoint(NamedTuple):
    """A search that was measured."""

    nprobe: int
    refine_ratio: int
    recall: float
    queries_per_second: float
    """Host to host, all queries in one call."""
    bytes_per_query: int
    """What the bandwidth model has a query read: codes and positions of nprobe mean lists, and rows refined."""


class TuneResult(NamedTuple):
    """What IvfPqIndex.tune found."""

    best: TunePoint
    """The fastest that reaches the recall; if none does, the one that comes nearest."""
    reached: bool
    points: list[TunePoint]
    """All that were measured, in that order."""


class Suggestion(NamedTuple):
    """A first guess of what an IvfPqIndex and its searches want."""

    nlist: int
    pq_dim: int
    keep: str
    nprobe: int
    refine_ratio: int
    device_bytes: int
    """Of codes, and of rows kept on the device."""
    bytes_per_query: int
    """Of codes, with the mean list."""
    predicted_qps: float
    """By reading these bytes alone, once a query."""


class TokenRows(NamedTuple, Generic[Array]):
    """Tokens that belong to each row: row r has tokens[begins[r]:begins[r + 1]]."""

    begins: Array
    """[rows + 1] int64, not decreasing."""
    tokens: Array
    """int32; what lies outside the vocabulary is ignored."""

"""Picks the k best of n, exactly and reproducibly to the bit: search, row-wise top k, sampling, on CPUs and GPUs.

FlatIndex finds the nearest of stored vectors, IvfPqIndex those of very many by short codes, top_k the best of every row of a matrix, sample draws a token of every
row of logits. Arrays of NumPy, torch, CuPy and JAX go in without a copy, and results come back as the same kind, on
the same device. See docs/python.md of the repository.
"""

from ._core import (
    CorruptFile,
    CudaError,
    Error,
    FlatIndex,
    InvalidArgument,
    IoError,
    IvfPqIndex,
    OutOfMemory,
    Unsupported,
    WrongType,
    __version__,
    devices,
    explain_sample,
    explain_top_k,
    sample,
    suggest,
    top_k,
    top_k_mask,
)
from ._results import (
    Device,
    IvfPqMemory,
    ListStatistics,
    MemoryUse,
    SampleResult,
    SearchResult,
    SearchStats,
    Suggestion,
    TokenRows,
    TopK,
    TunePoint,
    TuneResult,
)

__all__ = [
    "CorruptFile",
    "CudaError",
    "Device",
    "Error",
    "FlatIndex",
    "InvalidArgument",
    "IoError",
    "IvfPqIndex",
    "IvfPqMemory",
    "ListStatistics",
    "MemoryUse",
    "OutOfMemory",
    "SampleResult",
    "SearchResult",
    "SearchStats",
    "Suggestion",
    "TokenRows",
    "TopK",
    "TunePoint",
    "TuneResult",
    "Unsupported",
    "WrongType",
    "__version__",
    "devices",
    "explain_sample",
    "explain_top_k",
    "sample",
    "suggest",
    "top_k",
    "top_k_mask",
]

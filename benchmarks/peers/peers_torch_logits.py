#!/usr/bin/env python3
"""Sampling with torch, on the CPU with all cores and on the GPU where there is one, as servers put it together.

`torch`: torch.topk, division by the temperature, softmax, cumulative sum, the top-p and min-p masks, a draw, and the token
at that place; without a top k a full sort stands in its place. `torch_sort` sorts whole rows although k is given, which
servers do where k differs from row to row, and alone stands beside parameters that are arrays. A mask is a byte a token
here. The draw is that of torch.multinomial for one sample, the weights over exponential random numbers, without its wait
for the GPU. Logits are normal, standard deviation 3; on the GPU copies of them take turns, so that the L2 cache
holds none. Before anything is timed, the first rows' tokens are checked to be among those that the filters leave."""

import functools
import os
import re
from typing import NamedTuple

import numpy as np
import peer
import torch

WORK = re.compile(r"sample/(\d+)x(\d+)/(\w+)/t([\d.]+)(?:-k(\d+))?(?:-p([\d.]+))?(?:-minp([\d.]+))?(/cpu)?(/arrays)?(?:/(\w+))?")
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LOGITS_DEVIATION = 3
PROMPT_TOKENS, GENERATED_TOKENS = 1000, 200
REPETITION, PRESENCE, FREQUENCY = 1.1, 0.3, 0.2
TOP_TOKENS = 5  # with log-probabilities
ROTATED_BYTES, MOST_COPIES = 256 << 20, 4096
WAIT_CYCLES = 2_000_000  # about 1 ms: longer than the host takes to queue some thirty kernels
CHECKED_ROWS, CHECKED_DRAWS = 8, 3
TOLERANCE = 1e-3  # of a share that is summed in fp32, in another order


class Job(NamedTuple):
    work: str
    rows: int
    vocab: int
    type: str
    temperature: float
    top_k: int  # 0: off
    top_p: float  # 1: off
    min_p: float  # 0: off
    place: str  # "cpu" or "cuda"
    arrays: bool  # parameters, with a value of each row
    extra: str  # "", "logprobs", "penalties" or "mask"


def parse(work):
    """The job that a name of work means, or None if it is not sampling."""
    match = WORK.fullmatch(work)
    if not match:
        return None
    rows, vocab, element, temperature, k, p, min_p, cpu, arrays, extra = match.groups()
    filters = float(temperature), int(k or 0), float(p or 1), float(min_p or 0)
    place = "cpu" if cpu else "cuda"
    return Job(work, int(rows), int(vocab), element, *filters, place, bool(arrays), extra or "")


def jobs_by_logits(works):
    """{(place, rows, vocab, type): [job, ...]} in their order, of the places that there are."""
    groups = {}
    for job in filter(None, map(parse, works)):
        if job.place == "cpu" or torch.cuda.is_available():
            groups.setdefault((job.place, job.rows, job.vocab, job.type), []).append(job)
    return groups


class History(NamedTuple):
    prompt: torch.Tensor  # [rows, PROMPT_TOKENS]
    generated: torch.Tensor  # [rows, GENERATED_TOKENS]


def history_of(job, generator):
    prompt = torch.randint(job.vocab, (job.rows, PROMPT_TOKENS), device=job.place, generator=generator)
    at = torch.randint(100, (job.rows, GENERATED_TOKENS), device=job.place, generator=generator)
    return History(prompt, prompt.gather(1, at))


def penalised(x, history):
    counts = torch.zeros_like(x).scatter_add_(1, history.generated, torch.ones_like(history.generated, dtype=x.dtype))
    seen = (counts > 0).scatter_(1, history.prompt, True)
    x = torch.where(seen, torch.where(x > 0, x / REPETITION, x * REPETITION), x)
    return x - FREQUENCY * counts - PRESENCE * (counts > 0)


def beside_of(job, generator):
    """What a job's logits are changed by: a history, which tokens are forbidden, or nothing."""
    if job.extra == "penalties":
        return history_of(job, generator)
    if job.extra == "mask":
        return torch.rand((job.rows, job.vocab), device=job.place, generator=generator) < 0.5
    return None


def changed(logits, job, beside):
    if job.extra == "penalties":
        return penalised(logits.float(), beside)
    return logits.masked_fill(beside, -torch.inf) if job.extra == "mask" else logits


def first_of(beside, rows):
    """The same of the first rows."""
    if isinstance(beside, History):
        return History(*(part[:rows] for part in beside))
    return None if beside is None else beside[:rows]


def draw(logits, job, beside, sort_whole_rows):
    """A token of every row, [rows]; with log-probabilities also [rows] and twice [rows, TOP_TOKENS]."""
    x = changed(logits, job, beside)
    if job.temperature == 0:
        return (x.argmax(dim=1),)
    if job.top_k and not sort_whole_rows:
        best, ids = torch.topk(x, job.top_k, dim=1)
    else:
        best, ids = torch.sort(x, dim=1, descending=True)
    if job.top_k and sort_whole_rows:
        best = best.masked_fill(best < best[:, job.top_k - 1 : job.top_k], -torch.inf)
    weights = torch.softmax(best.float() / job.temperature, dim=1)
    if job.top_p < 1:
        weights = weights.masked_fill(weights.cumsum(dim=1) - weights >= job.top_p, 0)
    if job.min_p > 0:
        weights = weights.masked_fill(weights < job.min_p * weights[:, :1], 0)
    place = (weights / torch.empty_like(weights).exponential_()).argmax(dim=1, keepdim=True)
    token = ids.gather(1, place)
    if job.extra != "logprobs":
        return (token.squeeze(1),)
    logprobs = torch.log_softmax(x.float() / job.temperature, dim=1)
    top = torch.topk(logprobs, TOP_TOKENS, dim=1)
    return token.squeeze(1), logprobs.gather(1, token).squeeze(1), top.values, top.indices


def check(logits, job, beside, tokens):
    """Each of the first rows' tokens is one that the filters leave, by float64 and numpy's sort."""
    head = changed(logits[:CHECKED_ROWS].float(), job, first_of(beside, CHECKED_ROWS))
    for row, token in zip(head.double().cpu().numpy(), tokens[:CHECKED_ROWS].tolist()):
        best = -np.sort(-row)
        if job.temperature == 0:
            assert row[token] == best[0], "torch drew another token than the best"
            continue
        best = best[: job.top_k or None]
        weights = np.exp((best - best[0]) / job.temperature)
        before = np.concatenate([[0], np.cumsum(weights)[:-1]]) / weights.sum()
        left = (before < job.top_p + TOLERANCE) & (weights > job.min_p * (1 - TOLERANCE))
        assert row[token] >= best[left][-1], "torch drew a token that the filters drop"


def check_draws(logits, job, beside, run):
    """One of some draws is right: now and then torch takes a token of weight 0 (seen once, of 1024 rows of 50,000; an
    exponential of 0, and 0 / 0 for the largest, would explain it)."""
    for again in reversed(range(CHECKED_DRAWS)):
        try:
            return check(logits, job, beside, run(0)[0])
        except AssertionError:
            if not again:
                raise


def gpu_ms(run, i):
    """By CUDA events, with a waiting kernel ahead, so that the time is the GPU's alone."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(WAIT_CYCLES)
    begin.record()
    run(i)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def cpu_ms(run, i):
    return peer.wall_ms(lambda: run(i))


def copies_of(logits):
    if logits.device.type == "cpu":
        return [logits]
    copies = min(ROTATED_BYTES // (logits.numel() * logits.element_size()) + 1, MOST_COPIES)
    return logits.repeat(copies, 1, 1)


def names_of(job):
    """The ways to draw that are measured; without a top k they are one."""
    if not job.top_k:
        return ["torch"]
    return ["torch_sort"] if job.arrays else ["torch", "torch_sort"]


def measure(works, quick):
    torch.set_num_threads(os.cpu_count())
    times = {}
    for (place, rows, vocab, element), jobs in jobs_by_logits(works).items():
        generator = torch.Generator(place).manual_seed(1)
        first = torch.empty((rows, vocab), device=place).normal_(0, LOGITS_DEVIATION, generator=generator)
        first = first.to(TYPES[element])
        logits = copies_of(first)
        for job in jobs:
            beside = beside_of(job, generator)
            times[job.work] = {}
            for name in names_of(job):

                def run(i, job=job, beside=beside, logits=logits, sort=name == "torch_sort"):
                    return draw(logits[i % len(logits)], job, beside, sort)

                check_draws(first, job, beside, run)
                timed = gpu_ms if place == "cuda" else cpu_ms
                ms = peer.median_ms(functools.partial(timed, run), quick)
                times[job.work][name] = ms
                peer.say(job.work, name, ms)
        del first, logits
    return {"torch_logits": torch.__version__, "threads": torch.get_num_threads()}, times


if __name__ == "__main__":
    peer.main(__doc__, measure)

"""Whether a record reaches its targets, and which peer comes closest. Used by run_campaign.py and report.py."""

import re
from typing import NamedTuple

# On the CPU, from the table of targets in docs/benchmarks.md.
SHARE_BEYOND_CACHES = 0.9
SPEEDUP_BEYOND_CACHES = 1.8
SPEEDUP_IN_CACHES = 3.5
SPEEDUP_OF_BATCH = {16: 1.4, 256: 0.85}

# Certified search, over FAISS: of one query, and of batches by queries and k, in vectors of 256 bits.
CERTIFIED_SPEEDUP = 8
CERTIFIED_SPEEDUP_OF_BATCH = {(16, 10): 3.7, (16, 100): 2.8, (256, 10): 1.7, (256, 100): 1.6}
CERTIFIED_ONE_QUERY = ("1000000x768", "100000x384")

# Row-wise top k on the CPU, over torch.topk on the same cores.
ROWS_SPEEDUP = {"top_k/65536x256/f32/k32/cpu": 5, "top_k/65536x1024/f32/k64/cpu": 5}

# Sampling on the CPU, over the faster of torch's ways on the same cores.
SAMPLE_SPEEDUP = 5
SAMPLE_WITH_TARGET = re.compile(r"sample/(1|64)x128256/(f32|bf16)/t0\.8-k50-p0\.95/cpu")

# These campaigns measure the CPU, whatever else the machine has.
CPU_CAMPAIGNS = ("flat_cpu", "flat_certified")

# Above this load, as a share of the cores, others were working too, and the figures are wrong.
BUSY_SHARE = 0.5


def is_busy(load, cores):
    return load > BUSY_SHARE * cores


class Verdict(NamedTuple):
    what: str
    target: str
    reached: str
    ok: bool


class Peer(NamedTuple):
    name: str
    ms: float
    anchor: bool


def is_on_cpu(work):
    """Whether work ran on the CPU, in a campaign that measures both."""
    return "/cpu" in work


def peers(record):
    """The peers of a record, the fastest first. What tells them apart is the name; an anchor was not in this run."""
    found = []
    for name, value in record.get("peers", {}).items():
        anchor = isinstance(value, dict)
        found.append(Peer(name, value["ms"] if anchor else value, anchor))
    return sorted(found, key=lambda p: p.ms)


def peers_work(work):
    """The name of the same work for peers: an instruction set is forced on ours alone, and none has a plane."""
    return re.sub(r"(/host|/device)(/cpu)?(/amx|/avx512_vnni|/avx512|/avx2|/neon_dotprod|/neon|/scalar|/certified)+$", r"\1\2", work)


def is_exact(name):
    """Whether a peer's arithmetic is fp32, as the work asks; tf32, fp16 and bf16 answer another question."""
    return not re.search(r"tf32|fp16|bf16", name)


def best_peer(record):
    """The fastest peer that does the same work; one of this run before an anchor."""
    exact = [p for p in peers(record) if is_exact(p.name)]
    measured = [p for p in exact if not p.anchor]
    return (measured or exact or [None])[0]


def cache_bytes(machine):
    """What the machine's largest cache and its cores' own ones hold together."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = {level: int(text[:-1]) * units[text[-1]] for level, text in machine.get("caches", {}).items() if text}
    return sizes.get("L3", 0) + machine["cores"] * sizes.get("L2", 0)


def cpu_targets(record, machine):
    """The targets of work on the CPU, as fields of its record; nothing for work that has none."""
    if record["work"] in ROWS_SPEEDUP and "torch" in record["peers"]:
        return {"target_speedup": ROWS_SPEEDUP[record["work"]], "target_peer": "torch"}
    if SAMPLE_WITH_TARGET.fullmatch(record["work"]) and "torch" in record["peers"]:
        return {"target_speedup": SAMPLE_SPEEDUP}
    certified = re.fullmatch(r"flat/q(\d+)/(\d+x\d+)/.*/k(\d+)/host/cpu(/avx2)?/certified", record["work"])
    if certified and any(name.startswith("faiss") for name in record["peers"]):
        queries, shape, k = int(certified[1]), certified[2], int(certified[3])
        if (queries, k) in CERTIFIED_SPEEDUP_OF_BATCH:
            return {"target_speedup": CERTIFIED_SPEEDUP_OF_BATCH[queries, k]}
        return {"target_speedup": CERTIFIED_SPEEDUP} if queries == 1 and shape in CERTIFIED_ONE_QUERY else {}
    match = re.fullmatch(r"flat/q(\d+)/.*/host/cpu(/avx2)?", record["work"])
    if not match or not any(name.startswith("faiss") for name in record["peers"]):
        return {}
    queries = int(match.group(1))
    if queries in SPEEDUP_OF_BATCH:
        return {"target_speedup": SPEEDUP_OF_BATCH[queries]}
    if queries != 1:
        return {}
    if record["bytes"] > cache_bytes(machine):
        return {"target_share": SHARE_BEYOND_CACHES, "target_speedup": SPEEDUP_BEYOND_CACHES}
    return {"target_speedup": SPEEDUP_IN_CACHES}


def of(record):
    """Every target of a record: what, how much, how much was reached, and whether that is enough."""
    found = []
    if "target_ms" in record:
        target, reached = record["target_ms"], record["ms"]
        found.append(Verdict("ms", f"{target:g}", f"{reached:.4g}", reached <= target))
    if "target_graph_ms" in record:
        target, reached = record["target_graph_ms"], record["graph_ms"]
        found.append(Verdict("ms in a graph", f"{target:g}", f"{reached:.4g}", reached <= target))
    if "target_share" in record:
        target, reached = record["target_share"], record["share_of_limit"]
        found.append(Verdict("share of the limit", f">= {target:g}", f"{reached:.2f}", reached >= target))
    named = [p for p in peers(record) if p.name == record.get("target_peer")]
    peer = named[0] if named else best_peer(record)
    if "target_speedup" in record and peer:
        target, reached = record["target_speedup"], peer.ms / record["ms"]
        found.append(Verdict(f"over {peer.name}", f">= {target:g}x", f"{reached:.2f}x", reached >= target))
    if "target_ratio" in record and "ratio" in record:
        target, reached = record["target_ratio"], record["ratio"]
        found.append(Verdict("ratio", f"<= {target:g}", f"{reached:.3f}", reached <= target))
    if "target_allocations" in record:
        counts = f"{record['device_allocations']} + {record['heap_allocations']}"
        ok = record["device_allocations"] == 0 and record["heap_allocations"] == 0
        found.append(Verdict("allocations, device + heap", "0", counts, ok))
    return found

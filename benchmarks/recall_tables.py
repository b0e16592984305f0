"""Tables of the campaign ivf_pq_cpu: IVF-PQ beside FAISS's, each by its fastest setting that reaches a recall. Used by
report.py."""

import re

QUERIES = re.compile(r"ivf_pq/\d+x\d+/q(\d+)/")


def cpu_us(record, ms):
    """Of one query, over all cores."""
    return f"{1e3 * ms / int(QUERIES.match(record['work'])[1]):.1f}"


def is_comparison(record):
    return "peers_settings" in record


def comparisons(records):
    """[[work, ours, over a peer, ...], ...]: how many times faster, by the wall clock and by the time of all cores."""
    rows = []
    for record in records:
        row = [f"`{record['work']}`", f"{record['qps']:,.0f}", cpu_us(record, record["cpu_ms"])]
        for name, ms in record["peers"].items():
            wall, cpu = ms / record["ms"], record["peers_cpu_ms"][name] / record["cpu_ms"]
            text = f"{wall:.2f}x / {cpu:.2f}x"
            row.append(text if min(wall, cpu) >= record["target_speedup"] else f"**{text}**")
        rows.append(row)
    return rows


def settings(records):
    """[[library, work, recall, queries a second, microseconds of all cores], ...], the fastest first."""
    ordered = sorted(records, key=lambda r: (r["work"].split("/")[2], -r["qps"]))
    return [
        [r["library"], f"`{r['work']}`", f"{r['recall']:.4f}", f"{r['qps']:,.0f}", cpu_us(r, r["cpu_ms"]), str(r["runs"])]
        for r in ordered
    ]


def of(document, table):
    """The section's lines; `table(head, rows)` makes one of Markdown."""
    compared = [r for r in document["records"] if is_comparison(r)]
    others = [r for r in document["records"] if not is_comparison(r)]
    if not compared:
        return []
    peers = [f"over {name}, wall / CPU" for name in compared[0]["peers"]]
    lines = [f"Target: {compared[0]['target_speedup']:g}x over each peer by both clocks; what misses it is bold.", ""]
    lines += table(["work", "queries/s", "CPU us a query", *peers], comparisons(compared)) + [""]
    head = ["library", "work", "recall", "queries/s", "CPU us a query", "runs"]
    return lines + table(head, settings(others)) + [""]

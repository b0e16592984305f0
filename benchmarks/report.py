#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md and README.md, between their markers, and the pictures of the campaigns seeds
and rows, from the committed results in benchmarks/results/. `--check` writes nothing and fails where something would
change."""

import argparse
import collections
import json
import math
import pathlib
import re
import sys

import expectations
import figures
import recall_curves
import recall_tables
import rows_accuracy
import verdicts

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
CAMPAIGN_ORDER = ["flat_gpu", "seeds", "flat_cpu", "flat_certified", "flat_certified_gpu", "flat_host_rows", "rows", "logits", "ivf_pq", "ivf_pq_cpu", "ivf_pq_billion", "ivf_pq_wide"]
SEED = re.compile(r"flat/q1/(\d+)x(\d+)/f32/ip/k(\d+)/(host|device)(/\w+)?")
CROSSING = re.compile(r"flat/q(\d+)/(\d+)x(\d+)/f32/ip/k10/host(/cpu)?")
# What README shows of each campaign: the shapes that the targets name.
README_WORK = {
    "flat_gpu": [
        "flat/q1/1000000x1024/f32/ip/k100/host",
        "flat/q1/1000000x384/f32/ip/k100/host",
        "flat/q1/100000x768/f32/ip/k100/host",
        "flat/q1/10000x384/f32/ip/k100/host",
        "flat/q16/1000000x768/f32/ip/k100/device",
        "flat/q64/1000000x768/f32/ip/k100/device",
        "flat/q1024/1000000x768/f32/ip/k100/device",
    ],
    "flat_cpu": [
        "flat/q1/1000000x1024/f32/ip/k100/host/cpu",
        "flat/q1/1000000x384/f32/ip/k100/host/cpu",
        "flat/q1/10000x384/f32/ip/k100/host/cpu",
        "flat/q16/1000000x384/f32/ip/k100/host/cpu",
        "flat/q256/1000000x384/f32/ip/k100/host/cpu",
    ],
    "flat_certified": [
        "flat/q1/1000000x768/f32/ip/k10/host/cpu/certified",
        "flat/q1/100000x384/f32/ip/k100/host/cpu/certified",
        "flat/q16/100000x768/f32/ip/k10/host/cpu/certified",
        "flat/q256/100000x768/f32/ip/k10/host/cpu/certified",
        "flat/q256/1000000x384/f32/ip/k100/host/cpu/certified",
    ],
    "flat_certified_gpu": [
        "flat/q1/1000000x1024/f32/ip/k100/host/certified",
        "flat/q1/1000000x768/f32/ip/k100/host/clustered/certified",
        "flat/q1/10000000x768/f32/ip/k100/host/certified",
        "flat/q16/1000000x768/f32/ip/k100/device/certified",
        "flat/q1024/1000000x768/f32/ip/k100/device/certified",
    ],
    "flat_host_rows": ["flat/q1/20833333x768/f32/ip/k100/host/clustered/host_rows/certified"],
    "rows": [
        "top_k/1048576x256/f32/k32/i32",
        "top_k/65536x1024/f32/k64/i32",
        "top_k/65536x8192/f32/k64/i32",
        "top_k/1x1000000000/f32/k100/i32",
        "top_k/100x1000000/f32/k100/i32",
        "top_k/65536x256/f32/k32/cpu",
        "top_k/65536x1024/f32/k64/cpu",
        "top_k/1x10000000/f32/k100/cpu",
    ],
    "logits": [
        "top_k/1024x50000/f32/k2048/i32",
        "top_k/64x128256/bf16/k50/i32",
        "sample/64x128256/bf16/t0.8-k50-p0.95",
        "sample/1x128256/bf16/t0.8-k50-p0.95",
        "sample/256x128256/bf16/t0.8-k50-p0.95",
        "sample/64x128256/f32/t0.8-p0.95",
        "sample/1x128256/f32/t0.8-k50-p0.95/cpu",
        "sample/64x128256/bf16/t0.8-k50-p0.95/cpu",
    ],
    "ivf_pq": [
        "ivf_pq/10000000x96/q10000/k10/recall0.885/bytes52",
        "ivf_pq/10000000x96/q10000/k10/recall0.965/bytes100",
        "ivf_pq/10000000x96/q10000/k10/recall0.977/refined",
        "ivf_pq/10000000x96/q10000/k10/recall0.994/refined",
        "ivf_pq/10000000x96/q10000/k10/recall0.999/refined",
        "ivf_pq/10000000x96/q1/k10/recall0.994/refined/host",
        "ivf_pq/10000000x96/build/nlist8192/pq48",
    ],
    "ivf_pq_billion": [
        "ivf_pq/1000000000x96/q10000/k10/nprobe32/pq48",
        "ivf_pq/1000000000x96/q10000/k10/nprobe64/pq48",
    ],
    "ivf_pq_wide": [
        "ivf_pq/1000000x768/q10000/k10/nprobe32/pq384",
        "ivf_pq/1000000x768/q10000/k10/nprobe32/sq8",
    ],
}


def load_results():
    """[(machine, campaign, document)], GPUs before CPUs, those that have the most campaigns first."""
    found = []
    for path in sorted((ROOT / "benchmarks/results").glob("*/*.json")):
        if path.stem in CAMPAIGN_ORDER:
            document = json.loads(path.read_text(encoding="utf-8"))
            expectations.add(document, path.parent.name)
            found.append((path.parent.name, path.stem, document))
    campaigns = collections.Counter(machine for machine, _, _ in found)

    def place(one):
        machine, campaign, document = one
        is_cpu = "gpu" not in document["machine"]
        return is_cpu, 0 if is_cpu else -campaigns[machine], machine, CAMPAIGN_ORDER.index(campaign)

    return sorted(found, key=place)


def number(value):
    """Four significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if value >= 1000 else f"{value:.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def peer_text(peer):
    return f"{peer.name} {number(peer.ms)}{' (anchor)' if peer.anchor else ''}" if peer else ""


def is_crossing(record):
    return CROSSING.fullmatch(record["work"]) is not None


def records_table(records):
    rows = []
    for record in records:
        if not record["verified"]:
            rows.append([f"`{record['work']}`", "**wrong**", "", "", "", ""])
            continue
        best = verdicts.best_peer(record)
        others = [peer_text(p) for p in verdicts.peers(record) if p != best]
        rows.append(
            [
                f"`{record['work']}`",
                number(record["ms"]),
                number(record["limit_ms"]),
                f"{100 * record['share_of_limit']:.0f} %",
                f"{peer_text(best)}: {best.ms / record['ms']:.2f}x" if best else "",
                ", ".join(others),
            ]
        )
    return table(["work", "ms", "limit, ms", "share", "best peer, ms: ours is faster by", "other peers, ms"], rows)


def is_ivf_pq_search(record):
    return record["work"].startswith("ivf_pq/") and (not record["verified"] or "qps" in record)


def ivf_pq_table(records):
    """Approximate searches: a time means something beside its recall."""
    rows = []
    for record in records:
        work = f"`{record['work']}`"
        if not record["verified"]:
            rows.append([work, "", "**wrong**", "", "", "", ""])
            continue
        best = verdicts.best_peer(record)
        rows.append(
            [
                work + (f" by `{record['setting']}`" if "setting" in record else ""),
                f"{record['recall']:.4f}" if "recall" in record else "",
                number(record["ms"]),
                f"{record['qps']:,.0f}",
                f"{100 * record['share_of_limit']:.0f} %",
                f"{record['share_of_model']:.2f}",
                f"{peer_text(best)}: {best.ms / record['ms']:.2f}x" if best else "",
            ]
        )
    head = ["work", "recall", "ms", "queries/s", "share", "of the model", "best peer, ms: ours is faster by"]
    return table(head, rows) + [""] if rows else []


def targets_table(records):
    rows = []
    for record in records:
        for verdict in verdicts.of(record) if record["verified"] else []:
            share = f"{100 * record['share_of_limit']:.0f} %"
            reached = verdict.reached if verdict.ok else f"**{verdict.reached}**"
            rows.append([f"`{record['work']}`", verdict.what, verdict.target, reached, share])
    missed = sum(1 for row in rows if row[3].startswith("**"))
    if not rows:
        return []
    lines = [f"Targets: {len(rows) - missed} of {len(rows)} reached; what is not is bold.", ""]
    return lines + table(["work", "what", "target", "reached", "share of the limit"], rows) + [""]


def crossings_table(records):
    """For each dim and number of queries, where the CPU answers first, and where the plan picks the slower."""
    cells = {}
    lost = []
    for record in records:
        match = CROSSING.fullmatch(record["work"])
        if not match or not record["verified"] or match[4] or "ratio" not in record:
            continue
        queries, rows, dim = (int(match[i]) for i in (1, 2, 3))
        cells.setdefault((dim, queries), []).append((rows, record["ratio"]))
        winner = "cpu" if record["ratio"] > 1 else "cuda:0"
        if record["best_for"] != winner:
            lost.append(
                f"`{record['work']}` ({record['best_for']}, {max(record['ratio'], 1 / record['ratio']):.2f}x slower)"
            )
    if not cells:
        return []
    columns = sorted({rows for sweep in cells.values() for rows, _ in sweep})
    rows = []
    for (dim, queries), sweep in sorted(cells.items()):
        ratios = dict(sweep)
        rows.append([dim, queries] + [f"{ratios[c]:.2f}" if c in ratios else "" for c in columns])
    lines = ["The GPU's time over the CPU's, host to host, k 10: above 1 the CPU answers first.", ""]
    lines += table(["dim", "queries"] + [f"{c:,} rows" for c in columns], rows) + [""]
    chosen = "; ".join(lost) if lost else "none"
    return lines + [f"Where `device::best_for` picks the slower of the two: {chosen}.", ""]


def measured_again(records, hardware):
    """Which works run_campaign.py --update has put into a record."""
    works = {}
    for record in records:
        if "commit" in record:
            works.setdefault((record["commit"][:12], record["date"][:10]), []).append(record)
    lines = []
    for (commit, date), again in sorted(works.items()):
        load = max(record["load_before"] for record in again)
        busy = f", load before up to {load:.1f}" if verdicts.is_busy(load, hardware["cores"]) else ""
        names = ", ".join(f"`{record['work']}`" for record in again)
        lines += [f"Measured again at commit {commit}, {date}{busy}: {names}.", ""]
    return lines


def campaign_section(machine, campaign, document):
    hardware = document["machine"]
    parts = [f"{hardware['library_cpu']}"]
    if "gpu" in hardware:
        parts.append(f"{hardware['gpu']}, driver {hardware['driver']}, CUDA {hardware['cuda']}")
    peers = ", ".join(f"{name} {version[name]}" for name, version in document.get("peers", {}).items())
    reads = ", ".join(f"{name} {gb:,.0f} GB/s" for name, gb in document["limits"].get("read_gb_per_s", {}).items())
    lines = [
        f"### {machine}: {campaign}",
        "",
        f"{'; '.join(parts)}. Commit {document['commit'][:12]}, {document['date'][:10]}. "
        f"Read bandwidth in this run: {reads or 'not measured'}. Peers in this run: {peers or 'none'}.",
        "",
    ]
    lines += measured_again(document["records"], hardware)
    load = document.get("load_before", 0)
    if verdicts.is_busy(load, hardware["cores"]):
        lines += [f"**The machine was busy: load {load:.1f} before the run.** Its figures are no record.", ""]
    if campaign == "seeds" and seed_speedups(document):
        lines += [f"![speed-up over the round trip, by configuration]({picture_name(machine)})", ""]
    records = document["records"]
    if campaign == "rows":
        for figure in figures.of_rows(machine, records):
            lines += [f"![{figure.title}](pictures/{figure.file})", ""]
    if campaign == "ivf_pq":
        for figure in recall_curves.of_searches(machine, records):
            lines += [f"![{figure.title}](pictures/{figure.file})", ""]
    if campaign == "ivf_pq_cpu":
        return lines + recall_tables.of(document, table)
    lines += targets_table(records)
    lines += crossings_table(records)
    lines += ivf_pq_table([r for r in records if is_ivf_pq_search(r)])
    others = [r for r in records if not is_crossing(r) and not is_ivf_pq_search(r)]
    lines += records_table(others) + [""] if others else []
    lines += rows_accuracy.tables(document)
    return lines


def readme_section(results):
    """A table for each device: of what several machines measured, only the first one's."""
    lines = []
    tables = {}
    shown = set()
    for _, campaign, document in results:
        by_work = {r["work"]: r for r in document["records"] if r["verified"]}
        hardware = document["machine"]
        for work in README_WORK.get(campaign, []):
            if work not in by_work or work in shown:
                continue
            shown.add(work)
            record = by_work[work]
            best = verdicts.best_peer(record)
            faster = f"{best.ms / record['ms']:.2f}x" if best else ""
            share = f"{100 * record['share_of_limit']:.0f} %"
            title = hardware["library_cpu"] if verdicts.is_on_cpu(work) else hardware["gpu"]
            tables.setdefault(title, []).append([f"`{work}`", number(record["ms"]), share, peer_text(best), faster])
    for title, rows in tables.items():
        lines += [f"{title}:", ""]
        lines += table(["work", "ms", "of the read limit", "best peer, ms", "ours is faster by"], rows) + [""]
    if lines:
        lines += [
            "`q1/1000000x384/f32/ip/k100/host` reads: one query, a million rows of 384 fp32, inner product, k 100, "
            "query and result on the host. An anchor is a figure from another run.",
            "",
        ]
    if any(campaign == "rows" for _, campaign, _ in results):
        lines += [
            "`top_k/65536x256/f32/k32/cpu` reads: the 32 best of each of 65,536 rows of 256 fp32; `i32`: with 32-bit "
            "columns. torch writes 64-bit ones.",
            "",
        ]
    if any(campaign == "logits" for _, campaign, _ in results):
        lines += [
            "`sample/64x128256/bf16/t0.8-k50-p0.95` reads: a token of each of 64 rows of 128,256 bf16 logits, at "
            "temperature 0.8, with top k 50 and top p 0.95. torch's is put together from its pieces.",
            "",
        ]
    if any(campaign == "ivf_pq" for _, campaign, _ in results):
        lines += [
            "`ivf_pq/10000000x96/q10000/k10/recall0.977/refined` reads: IVF-PQ over ten million rows of 96, a batch of "
            "10,000 queries, k 10, by the fastest setting that finds 97.7 % of the nearest, rows refined.",
            "",
        ]
    return lines


def seed_speedups(document):
    """{(rows, dim, k): how much faster the resident path is than the round trip}."""
    times = {}
    for record in document["records"]:
        match = SEED.fullmatch(record["work"])
        if match and record["verified"]:
            key = (int(match[1]), int(match[2]), int(match[3]))
            times.setdefault(key, {})[match[4] + (match[5] or "")] = record["ms"]
    return {
        key: places["device/round_trip"] / places["host"]
        for key, places in sorted(times.items())
        if "host" in places and "device/round_trip" in places
    }


def picture_name(machine):
    return f"seeds_{machine}.svg"


def picture(machine, speedups):
    """Bars on a logarithmic scale, a group for each rows x dim, a bar for each k."""
    colours = {8: "#1b6ca8", 32: "#4c9f70", 100: "#d98324"}
    shapes = sorted({(rows, dim) for rows, dim, _ in speedups})
    left, top, height, group, bar = 56, 44, 240, 56, 14
    width = left + group * len(shapes) + 16
    lowest = 10 ** math.floor(math.log10(min(1.0, *speedups.values())))
    highest = 10 ** math.ceil(math.log10(max(10.0, *speedups.values())))

    def y(value):
        share = math.log10(value / lowest) / math.log10(highest / lowest)
        return round(top + height * (1 - share), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + height + 56}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{top + height + 56}" fill="#ffffff"/>',
        f'<text x="{left}" y="18" font-size="13">Resident search over the round trip, one query, {machine}: '
        "how many times faster</text>",
    ]
    for i, k in enumerate(colours):
        x = left + 70 * i
        out.append(
            f'<rect x="{x}" y="26" width="10" height="10" fill="{colours[k]}"/><text x="{x + 14}" y="35">k {k}</text>'
        )
    tick = lowest
    while tick <= highest * 1.01:
        weight = 1.5 if abs(tick - 1) < 1e-9 else 0.4
        out.append(
            f'<line x1="{left}" x2="{width - 8}" y1="{y(tick)}" y2="{y(tick)}" stroke="#888" stroke-width="{weight}"/>'
        )
        out.append(f'<text x="{left - 6}" y="{y(tick) + 4}" text-anchor="end">{tick:g}x</text>')
        tick *= 10
    for g, (rows, dim) in enumerate(shapes):
        x = left + g * group + 6
        for b, k in enumerate(colours):
            value = speedups.get((rows, dim, k))
            if value is None:
                continue
            y0, y1 = sorted((y(value), y(lowest)))
            out.append(
                f'<rect x="{x + b * bar}" y="{y0}" width="{bar - 2}" height="{round(y1 - y0, 1)}" fill="{colours[k]}">'
                f"<title>{rows:,} x {dim}, k {k}: {value:.1f}x</title></rect>"
            )
        label = f"{rows // 1000}k" if rows < 1_000_000 else f"{rows // 1_000_000}M"
        middle = x + 1.5 * bar
        out.append(f'<text x="{middle}" y="{top + height + 16}" text-anchor="middle">{label}</text>')
        out.append(f'<text x="{middle}" y="{top + height + 30}" text-anchor="middle">x {dim}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def between_markers(path, lines):
    """The file's text with the lines between its markers; unchanged where it has none."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return text
    body = "\n".join(["", *lines]).rstrip("\n")
    return before + begin + body + "\n" + end + after


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    check = parser.parse_args().check

    figures.check_example()
    recall_curves.check_example()
    results = load_results()
    sections = [
        line for machine, campaign, document in results for line in campaign_section(machine, campaign, document)
    ]
    wanted = {}
    docs = ROOT / "docs/benchmarks.md"
    readme = ROOT / "README.md"
    wanted[docs] = between_markers(docs, sections or ["No results are committed yet."])
    wanted[readme] = between_markers(readme, readme_section(results))
    for machine, campaign, document in results:
        if campaign == "seeds" and seed_speedups(document):
            wanted[ROOT / "docs" / picture_name(machine)] = picture(machine, seed_speedups(document))
        if campaign == "rows":
            for figure in figures.of_rows(machine, document["records"]):
                wanted[ROOT / "docs/pictures" / figure.file] = figure.svg
        if campaign == "ivf_pq":
            for figure in recall_curves.of_searches(machine, document["records"]):
                wanted[ROOT / "docs/pictures" / figure.file] = figure.svg

    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what the results say", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

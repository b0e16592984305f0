#!/usr/bin/env python3
"""Writes the tables of docs/maxk_gnn.md, between its markers, and its picture, from the committed record.

`--check` writes nothing and fails where something would change. Needs no torch.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECORD = ROOT / "benchmarks/results/h200/maxk_gnn.json"
PAGE = ROOT / "docs/maxk_gnn.md"
PICTURE = ROOT / "docs/pictures/maxk_gnn.svg"
LAYER_NAMES = {"sage": "GraphSAGE", "gcn": "GCN", "gin": "GIN"}
OURS = ["exact", *(f"max_iter{i}" for i in range(2, 9))]
COLOURS = {"selection": "#d98324", "rest": "#1b6ca8"}
LEFT, TOP, WIDTH, BAR, GAP, RIGHT = 190, 64, 420, 16, 10, 120


def read():
    """The record, and its entries by (graph, layer, activation)."""
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    return document, {tuple(r["work"].split("/")[i] for i in (2, 1, 3)): r for r in document["records"]}


def percent(values):
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values):.2f}"


def faster(entries, graph, layer, activation):
    return entries[graph, layer, "torch"]["ms"] / entries[graph, layer, activation]["ms"]


def share(entry):
    return entry["selection_ms"] / entry["ms"]


def graphs_and_layers(entries, made_up):
    """Those of one kind, by number of edges."""
    found = {(graph, layer) for graph, layer, _ in entries if graph.startswith("synthetic") == made_up}
    edges = {graph: e["edges"] for (graph, _, _), e in entries.items()}
    return sorted(found, key=lambda pair: (edges[pair[0]], list(LAYER_NAMES).index(pair[1])))


def accuracy_table(entries):
    columns = ["relu", "torch", *OURS]
    lines = ["| graph | layer | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for graph, layer in graphs_and_layers(entries, made_up=False):
        cells = [percent(entries[graph, layer, name]["accuracy"]) for name in columns]
        lines.append(f"| {graph} | {LAYER_NAMES[layer]} | " + " | ".join(cells) + " |")
    return lines


def far_from_torch(entries):
    """A sentence: the means that are further than a standard deviation, the larger of both, from torch.topk's."""
    compared, far = 0, []
    for graph, layer in graphs_and_layers(entries, made_up=False):
        theirs = entries[graph, layer, "torch"]["accuracy"]
        for name in OURS:
            ours = entries[graph, layer, name]["accuracy"]
            compared += 1
            difference = statistics.mean(ours) - statistics.mean(theirs)
            if abs(difference) > max(statistics.stdev(ours), statistics.stdev(theirs)):
                far.append(f"{graph} {LAYER_NAMES[layer]} {name} ({100 * difference:+.2f})")
    return f"Of {compared} means with `sl`, {len(far)} are further than one standard deviation from that with torch.topk: " + (
        ", ".join(far) + "."
    )


def time_table(entries, made_up):
    lines = [
        "| graph | edges | layer | step with torch.topk, ms | of it top k | step with `sl` exact, ms | of it top k | "
        "faster | with max_iter 4 |",
        "| --- " * 9 + "|",
    ]
    for graph, layer in graphs_and_layers(entries, made_up):
        theirs, exact = entries[graph, layer, "torch"], entries[graph, layer, "exact"]
        lines.append(
            f"| {graph} | {theirs['edges']:,} | {LAYER_NAMES[layer]} | {theirs['ms']:.3g} | {share(theirs):.1%} "
            f"| {exact['ms']:.3g} | {share(exact):.1%} | {faster(entries, graph, layer, 'exact'):.2f}x "
            f"| {faster(entries, graph, layer, 'max_iter4'):.2f}x |"
        )
    return lines


def tables(document, entries):
    out = []
    for part, heading, lines in (
        (
            "accuracy",
            "Accuracy on the test nodes, %, mean ± standard deviation over the seeds:",
            [*accuracy_table(entries), "", far_from_torch(entries)],
        ),
        ("accuracy", "Time of a training step on the same graphs:", time_table(entries, made_up=False)),
        ("step", "Time of a training step on graphs of Reddit's size:", time_table(entries, made_up=True)),
    ):
        run = document["runs"][part]
        out += [f"{heading}", "", *lines, ""]
        out += [f"{run['machine']}, torch {run['torch']}, torch-geometric {run['torch_geometric']}: `{run['command']}`", ""]
    return "\n".join(out)


def bar(y, milliseconds, entry, scale, label):
    """A step as a bar: the selection first, then everything else."""
    selection = entry["selection_ms"] * scale
    whole = milliseconds * scale
    return [
        f'<text x="{LEFT - 8}" y="{y + BAR - 4}" text-anchor="end">{label}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{selection:.1f}" height="{BAR}" fill="{COLOURS["selection"]}"/>',
        f'<rect x="{LEFT + selection:.1f}" y="{y}" width="{whole - selection:.1f}" height="{BAR}" '
        f'fill="{COLOURS["rest"]}"/>',
        f'<text x="{LEFT + whole + 6:.1f}" y="{y + BAR - 4}">{milliseconds:.3g} ms</text>',
    ]


def picture(entries):
    """The steps at the fewest edges, where top k weighs most."""
    pairs = graphs_and_layers(entries, made_up=True)
    pairs = [pair for pair in pairs if pair[0] == pairs[0][0]]
    steps = [(layer, name, entries[graph, layer, name]) for graph, layer in pairs for name in ("torch", "exact")]
    scale = WIDTH / max(entry["ms"] for _, _, entry in steps)
    width, height = LEFT + WIDTH + RIGHT, TOP + len(steps) * (BAR + GAP) + 12
    edges = steps[0][2]["edges"]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="13">A training step, {steps[0][2]["nodes"]:,} nodes, {edges:,} edges, '
        "hidden 256, k 32</text>",
    ]
    for i, (key, text) in enumerate((("selection", "finding the k best"), ("rest", "everything else"))):
        x = LEFT + 170 * i
        out.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[key]}"/>')
        out.append(f'<text x="{x + 18}" y="46">{text}</text>')
    for i, (layer, name, entry) in enumerate(steps):
        label = f"{LAYER_NAMES[layer]}, {'torch.topk' if name == 'torch' else 'shortlist'}"
        out += bar(TOP + i * (BAR + GAP), entry["ms"], entry, scale, label)
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something would change")
    check = parser.parse_args().check
    document, entries = read()
    page = PAGE.read_text(encoding="utf-8")
    between = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
    made = {PAGE: between.sub(lambda m: m[1] + tables(document, entries) + m[2], page), PICTURE: picture(entries)}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check and stale:
        sys.exit("\n".join(f"{path.relative_to(ROOT)} is not that of {RECORD.relative_to(ROOT)}" for path in stale))
    for path in stale:
        path.write_text(made[path], encoding="utf-8")


if __name__ == "__main__":
    main()

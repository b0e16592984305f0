#!/usr/bin/env python3
"""Draws queries a second over recall from a record of the campaign ivf_pq, as SVG: a line for each code and refine_ratio.

  python3 benchmarks/recall_curves.py benchmarks/results/h200/ivf_pq.json build/pictures

Recall on x, queries a second on a logarithmic y, as ann-benchmarks draws it: further right and up is better. Of each line
only those searches are drawn than which no other of it is both faster and better. Peers stand where their work's name says
that they reach a recall. report.py writes the committed pictures; ./run docs draws an example first.
"""

import math
import re
import sys
import xml.etree.ElementTree
from typing import NamedTuple

import verdicts
from figures import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Figure, draw_record, ticks

SEARCH = re.compile(r"ivf_pq/(\d+)x(\d+)/q(\d+)/k(\d+)/nprobe\d+/(\w+?)(?:/refine(\d+))?")
WITH_PEERS = re.compile(r"ivf_pq/(\d+)x(\d+)/q(\d+)/k(\d+)/recall(0\.\d+)(?:/\w+)*")
FEWEST_POINTS = 2  # of a line
LEAST_RECALL = 0.5  # what is below is of no use
RECALL_STEP = 0.05
DASHES = ["", "7 3", "2 3", "7 3 2 3"]  # of a code's refine_ratio, ascending


class Curve(NamedTuple):
    name: str
    points: list  # of (recall, queries a second)
    colour: str
    dash: str


def frontier(points):
    """Those points, by recall, that no other beats in both recall and speed."""
    best, kept = 0.0, []
    for recall, qps in sorted(points, reverse=True):
        if qps > best:
            best = qps
            kept.append((recall, qps))
    return kept[::-1]


def draw(title, lines, peers):
    """Lines over recall, and a cross for each (name, recall, queries a second) of peers."""
    places = [point for line in lines for point in line.points] + [peer[1:] for peer in peers]
    first = math.floor(min(recall for recall, _ in places) / RECALL_STEP) * RECALL_STEP
    # In millions, so that marks are short.
    marks = ticks(min(qps for _, qps in places) / 1e6, max(qps for _, qps in places) / 1e6)

    def across(recall):
        return round(LEFT + WIDTH * (recall - first) / (1 - first), 1)

    def up(qps):
        return round(TOP + HEIGHT * (1 - math.log(qps / 1e6 / marks[0]) / math.log(marks[-1] / marks[0])), 1)

    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13">{title}</text>',
        f'<text x="{LEFT}" y="44">million queries a second</text>',
        f'<text x="{LEFT + WIDTH / 2:g}" y="{height - 8}" text-anchor="middle">recall</text>',
    ]
    for mark in marks:
        y = up(mark * 1e6)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#888" stroke-width="0.4"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{mark:g}</text>')
    for step in range(round((1 - first) / RECALL_STEP) + 1):
        recall = first + step * RECALL_STEP
        x = across(recall)
        out.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#888" stroke-width="0.4"/>')
        out.append(f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{recall:.2f}</text>')
    for i, line in enumerate(lines):
        path = " ".join(f"{across(recall)},{up(qps)}" for recall, qps in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"{dash}/>')
        for recall, qps in line.points:
            out.append(
                f'<circle cx="{across(recall)}" cy="{up(qps)}" r="2.6" fill="{line.colour}">'
                f"<title>{line.name}: recall {recall:.4f}, {qps:,.0f} queries/s</title></circle>"
            )
        y, at = TOP + 8 + 16 * i, LEFT + WIDTH + 14
        out.append(f'<line x1="{at}" x2="{at + 22}" y1="{y}" y2="{y}" stroke="{line.colour}" stroke-width="1.8"{dash}/>')
        out.append(f'<text x="{at + 28}" y="{y + 4}">{line.name}</text>')
    for name, recall, qps in peers:
        x, y = across(recall), up(qps)
        out.append(f'<path d="M{x - 4},{y - 4}l8,8m0,-8l-8,8" stroke="#333" stroke-width="1.6" fill="none"/>')
        out.append(f'<text x="{x + 6}" y="{y + 4}">{name}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def lines_of(searches):
    """A line for each (code, refine_ratio) of [(code, ratio, recall, qps), ...]; a code has a colour."""
    lines = []
    codes, ratios = sorted({s[0] for s in searches}), sorted({s[1] for s in searches})
    for code, ratio in sorted({s[:2] for s in searches}):
        points = frontier([(recall, qps) for c, r, recall, qps in searches if (c, r) == (code, ratio)])
        if len(points) >= FEWEST_POINTS:
            colour = COLOURS[codes.index(code) % len(COLOURS)]
            dash = DASHES[ratios.index(ratio) % len(DASHES)]
            lines.append(Curve(f"{code}, refine {ratio}" if ratio else code, points, colour, dash))
    return lines


def of_searches(machine, records):
    """A picture of every set, batch and k that the records have lines for."""
    searches, peers = {}, {}
    for record in records:
        if not record["verified"]:
            continue
        if (match := SEARCH.fullmatch(record["work"])) and record.get("recall", 0) >= LEAST_RECALL:
            found = match[5], int(match[6] or 0), record["recall"], record["qps"]
            searches.setdefault(match.group(1, 2, 3, 4), []).append(found)
        elif match := WITH_PEERS.fullmatch(record["work"]):
            for peer in verdicts.peers(record):
                name = f"{peer.name}{' (anchor)' if peer.anchor else ''}"
                place = name, float(match[5]), 1000 * int(match[3]) / peer.ms
                peers.setdefault(match.group(1, 2, 3, 4), []).append(place)
    figures = []
    for work, found in sorted(searches.items()):
        lines = lines_of(found)
        if not lines:
            continue
        rows, dim, batch, k = (int(number) for number in work)
        title = f"IVF-PQ over {rows:,} x {dim}, batches of {batch:,}, k {k}, {machine}"
        file = f"ivf_pq_{machine}_{rows}x{dim}_q{batch}_k{k}.svg"
        figures.append(Figure(file, title, draw(title, lines, peers.get(work, []))))
    return figures


def check_example():
    """Draws a picture of made-up records; raises if a point is missing, superfluous or outside."""
    at = "ivf_pq/1000000x96/q10000/k10"

    def search(name, recall, qps):
        return {"work": f"{at}/{name}", "verified": True, "recall": recall, "qps": qps, "ms": 1e7 / qps}

    records = [
        search("nprobe8/pq48", 0.8, 2e7),
        search("nprobe16/pq48", 0.79, 1e7),  # slower and worse than the first
        search("nprobe32/pq48", 0.9, 5e6),
        search("nprobe8/sq8/refine2", 0.91, 9e6),
        search("nprobe64/sq8/refine2", 0.999, 4e5),
        search("nprobe1/sq8/refine2", 0.2, 9e9),  # of no use
        search("nprobe8/sq4", 0.9, 9e6),  # a single point is no line
        {"work": f"{at}/recall0.885/bytes52", "verified": True, "ms": 1, "peers": {"x": {"ms": 10.0, "source": "anchor"}}},
        {"work": f"{at}/nprobe64/pq48", "verified": False, "error": "made up"},
    ]
    drawn = of_searches("example", records)
    assert [figure.file for figure in drawn] == ["ivf_pq_example_1000000x96_q10000_k10.svg"], drawn
    picture = xml.etree.ElementTree.fromstring(drawn[0].svg)
    circles = [e for e in picture.iter() if e.tag.endswith("circle")]
    crosses = [e for e in picture.iter() if e.tag.endswith("path")]
    assert (len(circles), len(crosses)) == (4, 1), (len(circles), len(crosses))
    for circle in circles:
        inside = LEFT <= float(circle.get("cx")) <= LEFT + WIDTH and TOP <= float(circle.get("cy")) <= TOP + HEIGHT
        assert inside, "a point is outside of its axes"
    assert of_searches("example", []) == [], "pictures without records"


if __name__ == "__main__":
    sys.exit(draw_record(__doc__, "an ivf_pq.json", of_searches))

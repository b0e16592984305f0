#!/usr/bin/env python3
"""Draws RTop-K's Figures 4, 6 and 7 (ICLR 2025) from a record of the campaign rows, ours beside torch.topk, as SVG.

  python3 benchmarks/figures.py benchmarks/results/h200/rows.json build/pictures

Figure 4: times over the columns, 65,536 rows; 6: how many times faster than torch there; 7: times over eps. A figure that
a record has too few points for is left out. report.py writes the committed ones; ./run docs draws an example first.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import xml.etree.ElementTree
from typing import NamedTuple

FIGURE_ROWS = 65_536
FIGURE_KS = (64, 128, 256, 512)
FIGURE_COLS = (256, 512, 768, 1024, 1280, 2048, 3072, 4096, 6144, 8192)  # a record may have others at these k, too
WORK = re.compile(r"top_k/(\d+)x(\d+)/f32/k(\d+)/i32(?:/eps(1e-\d+))?")
COLOURS = ["#1b6ca8", "#4c9f70", "#d98324", "#a23b72", "#5f5f5f"]
LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 64, 62, 520, 260, 130, 48
FEWEST_POINTS = 2  # of a line


class Figure(NamedTuple):
    file: str
    title: str
    svg: str


class Line(NamedTuple):
    name: str
    points: list  # of (x, y)
    colour: str
    dashed: bool = False


def ticks(lowest, highest):
    """1, 2 and 5 times powers of ten, from the last at or below the lowest to the first at or above the highest."""
    steps = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    first = max(i for i, s in enumerate(steps) if s <= lowest * 1.0001)
    last = min(i for i, s in enumerate(steps) if s >= highest * 0.9999)
    return steps[first : max(last, first + 1) + 1]


def draw(title, x_title, y_title, lines, x_label="{:g}"):
    """Lines over a logarithmic scale in both directions."""
    xs = sorted({x for line in lines for x, _ in line.points})
    marks = ticks(min(y for line in lines for _, y in line.points), max(y for line in lines for _, y in line.points))

    def across(x):
        return round(LEFT + WIDTH * math.log(x / xs[0]) / math.log(xs[-1] / xs[0]), 1)

    def up(y):
        return round(TOP + HEIGHT * (1 - math.log(y / marks[0]) / math.log(marks[-1] / marks[0])), 1)

    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13">{title}</text>',
        f'<text x="{LEFT}" y="44">{y_title}</text>',
        f'<text x="{LEFT + WIDTH / 2:g}" y="{height - 8}" text-anchor="middle">{x_title}</text>',
    ]
    for mark in marks:
        weight = 1.5 if mark == 1 else 0.4
        out.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{up(mark)}" y2="{up(mark)}" '
            f'stroke="#888" stroke-width="{weight}"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{up(mark) + 4}" text-anchor="end">{mark:g}</text>')
    for x in xs:
        out.append(
            f'<text x="{across(x)}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{x_label.format(x)}</text>'
        )
    for i, line in enumerate(lines):
        places = " ".join(f"{across(x)},{up(y)}" for x, y in line.points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        out.append(f'<polyline points="{places}" fill="none" stroke="{line.colour}" stroke-width="1.8"{dash}/>')
        for x, y in line.points:
            out.append(
                f'<circle cx="{across(x)}" cy="{up(y)}" r="2.6" fill="{line.colour}">'
                f"<title>{line.name}, {x_label.format(x)}: {y:.4g}</title></circle>"
            )
        y = TOP + 8 + 16 * i
        at = LEFT + WIDTH + 14
        out.append(f'<line x1="{at}" x2="{at + 22}" y1="{y}" y2="{y}" stroke="{line.colour}" stroke-width="1.8"{dash}/>')
        out.append(f'<text x="{at + 28}" y="{y + 4}">{line.name}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def torch_ms(record):
    """Of this run, or None."""
    value = record.get("peers", {}).get("torch")
    return value if isinstance(value, (int, float)) else None


def over_columns(records):
    """{k: [(cols, record), ...]} at the shapes of Figures 4 and 6."""
    found = {}
    for record in records:
        match = WORK.fullmatch(record["work"])
        if not match or not record["verified"] or match[4]:
            continue
        rows, cols, k = (int(number) for number in match.groups()[:3])
        if rows == FIGURE_ROWS and cols in FIGURE_COLS and k in FIGURE_KS:
            found.setdefault(k, []).append((cols, record))
    return {k: sorted(of_k, key=lambda f: f[0]) for k, of_k in sorted(found.items()) if len(of_k) >= FEWEST_POINTS}


def over_eps(records):
    """[(eps, record), ...], and the exact record of the same shape: the one that has the most of them."""
    by_shape = {}
    exact = {}
    for record in records:
        match = WORK.fullmatch(record["work"])
        if not match or not record["verified"]:
            continue
        shape = match[1], match[2], match[3]
        if match[4]:
            by_shape.setdefault(shape, []).append((float(match[4]), record))
        else:
            exact[shape] = record
    shapes = [s for s in by_shape if s in exact and len(by_shape[s]) >= FEWEST_POINTS]
    if not shapes:
        return None, [], None
    best = max(shapes, key=lambda s: len(by_shape[s]))
    return best, sorted(by_shape[best], key=lambda f: f[0]), exact[best]


def of_rows(machine, records):
    """The figures that the records have points for."""
    figures = []

    def add(number, title, *rest, **more):
        figures.append(Figure(f"rows_{machine}_figure{number}.svg", title, draw(title, *rest, **more)))

    by_k = over_columns(records)
    times, speedups = [], []
    for colour, (k, of_k) in zip(COLOURS, by_k.items()):
        times.append(Line(f"ours, k {k}", [(cols, r["ms"]) for cols, r in of_k], colour))
        beside = [(cols, r) for cols, r in of_k if torch_ms(r)]
        if len(beside) >= FEWEST_POINTS:
            times.append(Line(f"torch, k {k}", [(cols, torch_ms(r)) for cols, r in beside], colour, dashed=True))
            speedups.append(Line(f"k {k}", [(cols, torch_ms(r) / r["ms"]) for cols, r in beside], colour))
    if times:
        add(4, f"Row-wise top k of {FIGURE_ROWS:,} rows, fp32, {machine} (Figure 4)", "columns", "ms", times)
    if speedups:
        title = f"How many times faster than torch.topk, {FIGURE_ROWS:,} rows, fp32, {machine} (Figure 6)"
        add(6, title, "columns", "times faster", speedups)
    shape, of_eps, exact = over_eps(records)
    if of_eps:
        ends = of_eps[0][0], of_eps[-1][0]
        lines = [
            Line("eps", [(eps, r["ms"]) for eps, r in of_eps], COLOURS[0]),
            Line("exact", [(end, exact["ms"]) for end in ends], COLOURS[2], dashed=True),
        ]
        if torch_ms(exact):
            lines.append(Line("torch", [(end, torch_ms(exact)) for end in ends], COLOURS[3], dashed=True))
        rows, cols, k = (int(number) for number in shape)
        add(7, f"Early stop by eps, {rows:,} x {cols}, k {k}, fp32, {machine} (Figure 7)", "eps", "ms", lines)
    return figures


def check_example():
    """Draws three figures from made-up records; raises if one is missing, no XML, or has a point outside."""
    records = []
    for cols in (256, 1024, 8192):
        for k in (64, 512):
            work = f"top_k/{FIGURE_ROWS}x{cols}/f32/k{k}/i32"
            records.append({"work": work, "verified": True, "ms": cols / 4000, "peers": {"torch": cols / 900 + 1}})
    for cols in (64, 65, 72):  # not of the figures
        for k in (4, 8, 64):
            work = f"top_k/{FIGURE_ROWS}x{cols}/f32/k{k}/i32"
            records.append({"work": work, "verified": True, "ms": 0.01, "peers": {"torch": 0.1}})
    for eps in ("", "/eps1e-6", "/eps1e-2"):
        work = f"top_k/1048576x256/f32/k32/i32{eps}"
        records.append({"work": work, "verified": True, "ms": 0.34, "peers": {} if eps else {"torch": 12.75}})
    records.append({"work": f"top_k/{FIGURE_ROWS}x512/f32/k64/i32", "verified": False, "error": "made up"})
    shapes = {k: [cols for cols, _ in of_k] for k, of_k in over_columns(records).items()}
    assert shapes == {64: [256, 1024, 8192], 512: [256, 1024, 8192]}, f"shapes of Figures 4 and 6 are {shapes}"
    drawn = of_rows("example", records)
    numbers = [figure.file for figure in drawn]
    assert numbers == [f"rows_example_figure{n}.svg" for n in (4, 6, 7)], f"drawn are {numbers}"
    for figure in drawn:
        picture = xml.etree.ElementTree.fromstring(figure.svg)
        circles = [e for e in picture.iter() if e.tag.endswith("circle")]
        assert circles, f"{figure.file} has no points"
        for circle in circles:
            inside = LEFT <= float(circle.get("cx")) <= LEFT + WIDTH and TOP <= float(circle.get("cy")) <= TOP + HEIGHT
            assert inside, f"{figure.file} has a point outside of its axes"
    assert of_rows("example", []) == [], "figures without records"


def draw_record(description, record, figures_of):
    """The program of a script that draws: a record and a folder, as arguments."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=pathlib.Path, help=record)
    parser.add_argument("folder", type=pathlib.Path, help="where the pictures go")
    arguments = parser.parse_args()
    document = json.loads(arguments.record.read_text(encoding="utf-8"))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for figure in figures_of(arguments.record.parent.name, document["records"]):
        (arguments.folder / figure.file).write_text(figure.svg, encoding="utf-8")
        print(arguments.folder / figure.file)
    return 0


if __name__ == "__main__":
    sys.exit(draw_record(__doc__, "a rows.json", of_rows))

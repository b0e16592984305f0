"""The accuracy and the speed of RTop-K's early stops beside its published tables (ICLR 2025), as lines of Markdown.

`published` figures are the paper's; `ours` come from a campaign's "accuracy" records, and of Table 3 from its times.
Used by run_campaign.py and report.py.
"""

import re

# Table 1: by iteration, the cumulative % of rows that have left the bisection; by k 16, 32, 64, 96, 128.
KS = [16, 32, 64, 96, 128]
LEFT = {
    4: [8.98, 5.32, 3.52, 3.00, 2.81],
    6: [33.86, 21.40, 13.87, 11.72, 11.15],
    8: [72.38, 59.17, 46.64, 41.35, 39.93],
    10: [91.88, 86.81, 80.68, 77.37, 76.62],
    12: [97.89, 96.45, 94.70, 93.57, 93.31],
    16: [100, 100, 100, 100, 100],
}
MEAN_EXIT = [7.60, 8.29, 8.95, 9.52, 9.60]

# Table 2: by max_iter, E1 / E2 / hit in %; by k as above.
EARLY_STOP = {
    2: [(12.6, 20.17, 45.85), (13.46, 30.68, 37.81), (7.12, 25.03, 51.78), (4.42, 17.80, 69.59), (4.6, 24.73, 70.93)],
    3: [(8.01, 13.13, 54.29), (6.22, 13.19, 60.32), (4.44, 12.40, 69.04), (3.39, 12.94, 74.41), (2.78, 13.23, 79.33)],
    4: [(4.93, 7.64, 68.35), (3.47, 7.05, 74.46), (2.47, 6.55, 80.51), (1.99, 6.82, 84.33), (1.6, 7.24, 87.34)],
    5: [(3.52, 5.20, 77.36), (2.20, 4.31, 83.19), (1.47, 3.70, 87.88), (1.18, 3.91, 90.49), (0.97, 4.29, 92.34)],
    6: [(2.90, 4.33, 81.57), (1.62, 3.17, 87.62), (0.99, 2.39, 91.83), (0.77, 2.57, 93.77), (0.62, 2.90, 95.03)],
    7: [(2.67, 4.10, 83.17), (1.38, 2.79, 89.51), (0.79, 1.87, 93.68), (0.61, 2.00, 95.33), (0.47, 2.30, 96.35)],
    8: [(2.61, 4.06, 83.68), (1.31, 2.69, 90.19), (0.71, 1.72, 94.35), (0.55, 1.82, 95.94), (0.41, 2.11, 96.86)],
}

# Table 3: by cols, how many times faster than torch.topk, mean over rows and k, on an A6000: by max_iter, then exact.
STEPS = [2, 3, 4, 5, 6, 7, 8, None]
SPEEDUP = {
    256: [13.07, 12.32, 11.46, 10.86, 10.32, 9.88, 9.55, 8.88],
    512: [11.66, 11.37, 10.43, 9.51, 8.87, 8.34, 7.98, 7.27],
    768: [9.73, 9.44, 8.72, 7.75, 7.16, 6.78, 6.46, 5.72],
}
TIMED = re.compile(r"(top_k/(\d+)x(\d+)/f32/k(\d+)/i32)(?:/max_iter(\d+))?")

# Table 5: (cols, k): the mean exit that the paper measured, and its E(n).
EXPECTED = {
    (256, 64): (8.72, 9.08),
    (256, 128): (9, 9.41),
    (1024, 64): (9.53, 9.87),
    (1024, 128): (10.31, 10.62),
    (1024, 256): (10.87, 11.24),
    (1024, 512): (11.24, 11.57),
    (4096, 64): (10.07, 10.36),
    (4096, 128): (10.95, 11.2),
    (4096, 256): (11.73, 12),
    (4096, 512): (12.46, 12.75),
    (8192, 64): (10.3, 10.54),
    (8192, 128): (11.14, 11.41),
    (8192, 256): (12.02, 12.26),
    (8192, 512): (12.8, 13.06),
}


def markdown(title, head, rows):
    lines = [title, "", "| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def rows_of(records):
    return f"{records[0]['rows']:,} rows"


def table_1(records):
    by_k = {r["k"]: r for r in records}
    rows = []
    for i, published in LEFT.items():
        cells = [f"{by_k[k]['left_percent'][str(i)]:.2f} / {p:.2f}" for k, p in zip(KS, published) if k in by_k]
        rows.append([str(i), *cells])
    rows.append(["mean exit", *(f"{by_k[k]['mean_exit']:.2f} / {p:.2f}" for k, p in zip(KS, MEAN_EXIT) if k in by_k)])
    title = (
        f"Rows that have left the bisection by iteration i, in %, 256 columns, normal data, eps 1e-4, "
        f"{rows_of(records)}: ours / published (Table 1)."
    )
    return markdown(title, ["i", *(f"k {k}" for k in KS if k in by_k)], rows)


def table_2(records):
    by_job = {(r["max_iter"], r["k"]): r for r in records}
    rows = []
    for max_iter, published in EARLY_STOP.items():
        row = [str(max_iter)]
        for k, (e1, e2, hit) in zip(KS, published):
            r = by_job[(max_iter, k)]
            ours = f"{r['e1_percent']:.2f}, {r['e2_percent']:.2f}, {r['hit_percent']:.2f}"
            row.append(f"{ours} / {e1:.2f}, {e2:.2f}, {hit:.2f}")
        rows.append(row)
    title = (
        f"Early stop at 256 columns, normal data, {rows_of(records)}: E1, E2, hit in %, ours / published (Table 2). "
        "E1 and E2: mean error of the largest and of the smallest kept value over the row's maximum; hit: share of the "
        "exact set."
    )
    return markdown(title, ["max_iter", *(f"k {k}" for k in KS)], rows)


def table_5(records):
    rows = []
    for r in records:
        published_mean, published_expected = EXPECTED[(r["cols"], r["k"])]
        steps = (r["mean_exit"], published_mean, r["expected"], published_expected)
        rows.append([str(r["cols"]), str(r["k"]), *(f"{s:.2f}" for s in steps)])
    title = f"Mean iterations until the bisection ends, eps 0, normal data, {rows_of(records)} (Table 5)."
    return markdown(title, ["cols", "k", "ours", "published", "E(n)", "E(n), published"], rows)


def table_3(records):
    """Over the rows and k of which every number of steps was timed, beside torch in the same run."""
    times = {}
    for record in records:
        match = TIMED.fullmatch(record["work"])
        if match and record["verified"]:
            steps = int(match[5]) if match[5] else None
            times.setdefault((int(match[3]), int(match[2]), int(match[4])), {})[steps] = record
    speedups = {}
    shapes = set()
    for (cols, rows, k), by_steps in times.items():
        torch_ms = by_steps.get(None, {}).get("peers", {}).get("torch")
        if cols in SPEEDUP and isinstance(torch_ms, float) and all(steps in by_steps for steps in STEPS):
            speedups.setdefault(cols, []).append([torch_ms / by_steps[steps]["ms"] for steps in STEPS])
            shapes.add((rows, k))
    if not speedups:
        return []
    rows = []
    for cols, of_shapes in sorted(speedups.items()):
        means = [sum(column) / len(column) for column in zip(*of_shapes)]
        rows.append([str(cols), *(f"{ours:.2f} / {p:.2f}" for ours, p in zip(means, SPEEDUP[cols]))])
    title = (
        f"How many times faster than torch.topk in this run, mean over {listed(r for r, _ in shapes)} rows and k "
        f"{listed(k for _, k in shapes)}: ours / published, on an A6000 (Table 3)."
    )
    return markdown(title, ["cols", *(f"max_iter {s}" if s else "exact" for s in STEPS)], rows)


def listed(numbers):
    return ", ".join(f"{n:,}" for n in sorted(set(numbers)))


def tables(document):
    """Lines of Markdown from a campaign's document; none where it has none of these figures."""
    accuracy = document.get("accuracy") or []
    of_table = {number: [r for r in accuracy if r["table"] == number] for number in (1, 2, 5)}
    lines = table_1(of_table[1]) if of_table[1] else []
    lines += table_2(of_table[2]) if of_table[2] else []
    lines += table_3(document["records"])
    lines += table_5(of_table[5]) if of_table[5] else []
    return lines

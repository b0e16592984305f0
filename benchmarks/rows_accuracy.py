"""The accuracy of RTop-K's early stops beside its published tables (ICLR 2025), as lines of Markdown.

`published` figures are the paper's; `ours` come from a campaign's "accuracy" records. Used by run_campaign.py and
report.py.
"""

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


def tables(records):
    """Lines of Markdown; none where a campaign measured no accuracy."""
    lines = []
    for number, make in ((1, table_1), (2, table_2), (5, table_5)):
        of_table = [r for r in records if r["table"] == number]
        if of_table:
            lines += make(of_table)
    return lines

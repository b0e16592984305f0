"""What the calls must return, written in NumPy and plain Python from docs/ordering.md and docs/sampling.md."""

import numpy as np

SUMS = 128
UNIT = 1 << 40


def fma(a, b, c):
    """fp32 fma. The product is exact in 64 bits of mantissa; two roundings differ from one in about 1 of 2^40."""
    return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(np.float32)


def reduce_sums(queries, rows, step):
    """128 partial sums, then halves onto halves: docs/ordering.md. queries [q, dim], rows [n, dim] -> [q, n]."""
    q, n, dim = len(queries), len(rows), queries.shape[1]
    p = np.zeros((q, n, SUMS), np.float32)
    for begin in range(0, dim, SUMS):
        part = min(SUMS, dim - begin)
        a = queries[:, None, begin : begin + part]
        b = rows[None, :, begin : begin + part]
        p[..., :part] = step(a, b, p[..., :part])
    width = SUMS // 2
    while width >= 1:
        p[..., :width] = p[..., :width] + p[..., width : 2 * width]
        width //= 2
    return p[..., 0]


def dot(queries, rows):
    return reduce_sums(queries, rows, fma)


def squared_l2(queries, rows):
    def step(a, b, p):
        d = (a - b).astype(np.float32)
        return fma(d, d, p)

    return reduce_sums(queries, rows, step)


def inverse_norms(rows):
    squares = np.array([dot(row[None], row[None])[0, 0] for row in rows], np.float32)
    with np.errstate(divide="ignore"):
        return np.float32(1) / np.sqrt(squares), squares == 0


def search(rows, queries, k, metric, ids=None):
    """(scores, ids), both [queries, k]."""
    rows, queries = rows.astype(np.float32), queries.astype(np.float32)
    scores = squared_l2(queries, rows) if metric == "l2" else dot(queries, rows)
    if metric == "cosine":
        by_query, zero_query = inverse_norms(queries)
        by_row, zero_row = inverse_norms(rows)
        with np.errstate(invalid="ignore"):
            scores = (scores * by_query[:, None]).astype(np.float32) * by_row[None]
        scores[zero_query[:, None] | zero_row[None]] = -np.inf
    best = np.argsort(scores if metric == "l2" else -scores, axis=1, kind="stable")[:, :k]
    labels = np.arange(len(rows)) if ids is None else np.asarray(ids)
    worst = np.inf if metric == "l2" else -np.inf
    found = np.take_along_axis(scores, best, 1)
    padding = ((0, 0), (0, k - best.shape[1]))
    return np.pad(found, padding, constant_values=worst), np.pad(labels[best], padding, constant_values=-1)


def top_k(matrix, k, largest=True, sorted=True):
    """(values, indices) over the last axis."""
    wide = np.asarray(matrix).astype(np.float64) + 0.0  # -0 equals +0
    keys = np.where(np.isnan(wide), np.inf, -wide if largest else wide)
    # NaN after +inf too: an infinity that is a number comes first.
    order = np.lexsort((keys, np.isnan(wide)), axis=-1)[..., :k]
    if not sorted:
        order = np.sort(order, axis=-1)
    return np.take_along_axis(np.asarray(matrix), order, -1), order


def f32(value):
    return np.float32(value)


EXP2 = [float.fromhex(c) for c in ("0x1p+0", "0x1.62e430p-1", "0x1.ebfbe0p-3", "0x1.c6af6cp-5", "0x1.3b29e4p-7",
                                    "0x1.5f0896p-10", "0x1.446c82p-13")]  # fmt: skip
LOG2 = [float.fromhex(c) for c in ("0x1.715476p+0", "-0x1.715470p-1", "0x1.ec7080p-2", "-0x1.715a68p-2",
                                    "0x1.2782e6p-2", "-0x1.eac696p-3", "0x1.a265f4p-3", "-0x1.865fecp-3",
                                    "0x1.80ab48p-3", "-0x1.cebec2p-4")]  # fmt: skip


def polynomial(coefficients, x):
    p = f32(coefficients[-1])
    for c in coefficients[-2::-1]:
        p = fma(p, x, f32(c))
    return p


def weight(t):
    """The integer weight of a token at t, docs/sampling.md section 2."""
    if not t >= -64:
        return 0
    magic = f32(1.5 * 2**23)
    n = f32(f32(t + magic) - magic)
    value = float(polynomial(EXP2, f32(t - n))) * 2.0 ** float(n)
    return round(value * UNIT)  # to even, and exact: the product is a power of two's shift


def log2(x):
    mantissa, exponent = np.frexp(float(x))
    low = float.fromhex("0x1.6a09e6p-1")
    if mantissa < low:
        mantissa, exponent = mantissa * 2, exponent - 1
    g = f32(mantissa - 1)
    return fma(polynomial(LOG2, g), g, f32(exponent))


def philox(seed, offset):
    """The first word of Philox4x32-10."""
    mask = 0xFFFFFFFF
    key = [seed & mask, seed >> 32]
    counter = [offset & mask, offset >> 32, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ key[0], b & mask, (a >> 32) ^ counter[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter[0]


def penalised(x, prompt, generated, repetition, presence, frequency):
    x = x.copy()
    for token in {*prompt, *generated}:
        if not 0 <= token < len(x):
            continue
        x[token] = f32(x[token] / f32(repetition)) if x[token] > 0 else f32(x[token] * f32(repetition))
        count = list(generated).count(token)
        if count:
            x[token] = f32(f32(x[token] - f32(f32(frequency) * f32(count))) - f32(presence))
    return x


def sample_row(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, offset=0, min_p_first=False,
               prompt=(), generated=(), repetition=1.0, presence=0.0, frequency=0.0, bias=None, allowed=None):  # fmt: skip
    """(token, kept, logprob of the token) of one row that can be drawn from."""
    x = penalised(np.asarray(logits).astype(np.float32), prompt, generated, repetition, presence, frequency)
    if bias is not None:
        x = (x + np.asarray(bias, np.float32)).astype(np.float32)
    if allowed is not None:
        x[~np.asarray(allowed, bool)] = -np.inf
    most = x.max()
    c = min(f32(f32(float.fromhex("0x1.715476p+0")) / f32(temperature if temperature else 1)), f32(2.0**100))
    with np.errstate(invalid="ignore"):
        t = np.where(x == most, f32(0), ((x - most).astype(np.float32) * c).astype(np.float32))
    weights = [weight(value) for value in t]
    kept = [int(i) for i in np.argsort(-x, kind="stable") if x[i] > -np.inf]
    total = sum(weights[i] for i in kept)

    def by_min_p(tokens):
        return [i for i in tokens if t[i] >= log2(f32(min_p))] if min_p > 0 else tokens

    if min_p_first:
        kept = by_min_p(kept)
    if 1 <= top_k < len(x):
        kept = kept[:top_k]
    if f32(top_p) < 1:
        share = max(0, round(float(f32(top_p)) * 2**32))
        border = share * sum(weights[i] for i in kept) >> 32
        before, count = 0, 0
        while count < len(kept) and (count == 0 or before < border):
            before += weights[kept[count]]
            count += 1
        kept = kept[:count]
    if not min_p_first:
        kept = by_min_p(kept)
    if temperature == 0:
        kept = kept[:1]
        token = kept[0]
    else:
        r = (philox(seed, offset) >> 8) * sum(weights[i] for i in kept) >> 24
        reached = 0
        for token in sorted(kept):
            reached += weights[token]
            if reached > r:
                break
    norm = log2(f32(f32(total) * f32(2.0**-40)))
    return token, len(kept), f32(f32(t[token] - norm) * f32(float.fromhex("0x1.62e430p-1")))

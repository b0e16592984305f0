#!/usr/bin/env python3
"""Prints tests/unit/golden_vectors.inc: scores whose bits were computed in exact arithmetic.

Every operation of the score's definition (docs/ordering.md) is done on fractions and rounded once, to nearest even, into
the bits of an IEEE binary32, with its denormals, overflow, signed zeros, infinities and NaN. No floating-point unit takes
part, so nothing of the machine that runs this can reach the expected bits.

    python3 tools/golden_vectors.py > tests/unit/golden_vectors.inc
"""
import math
from fractions import Fraction

# --- fp32 numbers: a Fraction with a sign for zero, or one of the specials -----------------------------------------

INF, NINF, NAN = "inf", "-inf", "nan"
POS_ZERO, NEG_ZERO = "+0", "-0"
LARGEST_EXPONENT, SMALLEST_EXPONENT, FRACTION_BITS = 127, -126, 23


def is_zero(v):
    return v in (POS_ZERO, NEG_ZERO)


def is_inf(v):
    return v in (INF, NINF)


def is_negative(v):
    return v in (NINF, NEG_ZERO) or (isinstance(v, Fraction) and v < 0)


def exact(v):
    """The rational number of a finite value."""
    return Fraction(0) if is_zero(v) else v


def signed_zero(negative):
    return NEG_ZERO if negative else POS_ZERO


def floor_log2(v):
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if Fraction(2) ** e <= v else e - 1


def round_f32(v):
    """The nearest fp32 of a non-zero Fraction, ties to even."""
    negative, magnitude = v < 0, abs(v)
    quantum = Fraction(2) ** (max(floor_log2(magnitude), SMALLEST_EXPONENT) - FRACTION_BITS)
    rounded = round(magnitude / quantum) * quantum  # round() of a Fraction takes ties to even
    if rounded == 0:
        return signed_zero(negative)
    if rounded >= Fraction(2) ** (LARGEST_EXPONENT + 1):
        return NINF if negative else INF
    return -rounded if negative else rounded


def fma(a, b, c):
    if NAN in (a, b, c) or (is_inf(a) and is_zero(b)) or (is_zero(a) and is_inf(b)):
        return NAN
    negative = is_negative(a) != is_negative(b)
    if is_inf(a) or is_inf(b):
        product = NINF if negative else INF
        return NAN if is_inf(c) and c != product else product
    if is_inf(c):
        return c
    total = exact(a) * exact(b) + exact(c)
    if total != 0:
        return round_f32(total)
    # An exact zero: the sign that both addends share, else +.
    product_is_zero = is_zero(a) or is_zero(b)
    if product_is_zero and is_zero(c) and negative == is_negative(c):
        return signed_zero(negative)
    return POS_ZERO


ONE = Fraction(1)


def add(a, b):
    return fma(a, ONE, b)


def sub(a, b):
    return fma(b, -ONE, a)


def mul(a, b):
    if NAN in (a, b) or (is_inf(a) and is_zero(b)) or (is_zero(a) and is_inf(b)):
        return NAN
    negative = is_negative(a) != is_negative(b)
    if is_inf(a) or is_inf(b):
        return NINF if negative else INF
    if is_zero(a) or is_zero(b):
        return signed_zero(negative)
    return round_f32(a * b)


def reciprocal(v):
    if v == NAN:
        return NAN
    if is_inf(v):
        return signed_zero(is_negative(v))
    if is_zero(v):
        return NINF if is_negative(v) else INF
    return round_f32(1 / v)


def sqrt(v):
    """The nearest fp32 of the square root of a value >= 0."""
    if v in (NAN, INF) or is_zero(v):
        return v
    # The root of an fp32 is normal; with 2 * extra more bits than a tie needs, the sticky bit decides exactly.
    extra = 40
    scale = 2 * (FRACTION_BITS + extra) - 2 * (floor_log2(v) // 2)
    scaled = v * Fraction(2) ** scale
    whole = scaled.numerator // scaled.denominator
    root = math.isqrt(whole)
    inexact = root * root != scaled
    return round_f32((Fraction(root) + (Fraction(1, 2) if inexact else 0)) / Fraction(2) ** (scale // 2))


# --- bits ----------------------------------------------------------------------------------------------------------


def decode_ieee(bits, exponent_bits, fraction_bits):
    largest = (1 << exponent_bits) - 1
    bias = largest >> 1
    negative = bool(bits >> (exponent_bits + fraction_bits))
    exponent = (bits >> fraction_bits) & largest
    fraction = bits & ((1 << fraction_bits) - 1)
    if exponent == largest:
        return NAN if fraction else (NINF if negative else INF)
    if exponent == 0 and fraction == 0:
        return signed_zero(negative)
    mantissa = fraction if exponent == 0 else fraction + (1 << fraction_bits)
    value = Fraction(mantissa) * Fraction(2) ** (max(exponent, 1) - bias - fraction_bits)
    return -value if negative else value


def encode_f32(v):
    if v == NAN:
        return 0x7FC00000
    sign = 0x80000000 if is_negative(v) else 0
    if is_inf(v):
        return sign | 0x7F800000
    if is_zero(v):
        return sign
    magnitude = abs(v)
    exponent = max(floor_log2(magnitude), SMALLEST_EXPONENT)
    mantissa = magnitude / Fraction(2) ** (exponent - FRACTION_BITS)
    assert mantissa.denominator == 1
    if mantissa < 1 << FRACTION_BITS:
        return sign | int(mantissa)
    return sign | ((exponent + 127) << FRACTION_BITS) | (int(mantissa) - (1 << FRACTION_BITS))


def decode(element_type, bits):
    if element_type == "f32":
        return decode_ieee(bits, 8, 23)
    if element_type == "f16":
        return decode_ieee(bits, 5, 10)
    if element_type == "bf16":
        return decode_ieee(bits, 8, 7)
    value = bits - 256 if element_type == "i8" and bits >= 128 else bits
    return Fraction(value) if value else POS_ZERO


def f32(number):
    """The bits of a number that fp32 holds exactly, or of its nearest."""
    v = Fraction(number)
    return encode_f32(round_f32(v)) if v else 0


# --- the score -----------------------------------------------------------------------------------------------------


def tree(p):
    p = list(p)
    s = 64
    while s >= 1:
        for j in range(s):
            p[j] = add(p[j], p[j + s])
        s //= 2
    return p[0]


def dot(a, b):
    p = [POS_ZERO] * 128
    for i, (u, v) in enumerate(zip(a, b)):
        p[i % 128] = fma(u, v, p[i % 128])
    return tree(p)


def squared_l2(a, b):
    p = [POS_ZERO] * 128
    for i, (u, v) in enumerate(zip(a, b)):
        d = sub(u, v)
        p[i % 128] = fma(d, d, p[i % 128])
    return tree(p)


def cosine(q, x):
    qq, xx = dot(q, q), dot(x, x)
    if is_zero(qq) or is_zero(xx):
        return NINF
    return mul(mul(dot(q, x), reciprocal(sqrt(qq))), reciprocal(sqrt(xx)))


def score(metric, q, x):
    v = {"inner_product": dot, "cosine": cosine, "l2": squared_l2}[metric](q, x)
    return POS_ZERO if is_zero(v) else v


# --- cases ---------------------------------------------------------------------------------------------------------


class Bits:
    """A small generator of its own, so that the cases stay the same whatever Python does with its own."""

    def __init__(self, seed):
        self.state = seed

    def next(self, count):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> (64 - count)

    def f32(self, lowest=124, highest=130):
        return (self.next(1) << 31) | ((lowest + self.next(16) % (highest - lowest + 1)) << 23) | self.next(23)

    def element(self, element_type):
        if element_type == "f32":
            return self.f32()
        if element_type == "f16":
            return (self.next(1) << 15) | ((8 + self.next(16) % 12) << 10) | self.next(10)
        if element_type == "bf16":
            return (self.next(1) << 15) | ((120 + self.next(16) % 12) << 7) | self.next(7)
        return self.next(8)


WIDTH = {"f32": 8, "f16": 4, "bf16": 4, "i8": 2, "u8": 2}
TYPES = list(WIDTH)
METRICS = ["inner_product", "cosine", "l2"]
F_INF, F_NINF, F_NAN, F_NAN_PAYLOAD = 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA12345
F_MAX, F_DENORMAL, F_NEG_DENORMAL, F_NEG_ZERO = 0x7F7FFFFF, 0x00000001, 0x80000001, 0x80000000


def random_cases():
    """Every dimension with every metric, the types in turn, then every type with every metric."""
    bits = Bits(1)
    turn = 0
    for dim in (1, 2, 3, 127, 128, 129, 200, 256, 300):
        for metric in METRICS:
            t = TYPES[turn % len(TYPES)]
            turn += 1
            yield "random", t, metric, [bits.f32() for _ in range(dim)], [bits.element(t) for _ in range(dim)]
    for metric in METRICS:
        yield "random", "f32", metric, [bits.f32() for _ in range(300)], [bits.f32() for _ in range(300)]
    for t in TYPES:
        for metric in METRICS:
            yield "random", t, metric, [bits.f32() for _ in range(140)], [bits.element(t) for _ in range(140)]
    for metric in METRICS:  # the whole range of exponents
        yield ("wide exponents", "f32", metric, [bits.f32(70, 180) for _ in range(131)],
               [bits.f32(70, 180) for _ in range(131)])


def widening_cases():
    """One element against a query of 1: the score is the element."""
    one = [f32(1)]
    for b in (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3555, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0xFD55):
        yield "widening", "f16", "inner_product", one, [b]
    for b in (0x8000, 0x0001, 0x807F, 0x0080, 0x3EAB, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1, 0xFF81):
        yield "widening", "bf16", "inner_product", one, [b]
    for b in (0x00, 0x01, 0x7F, 0x80, 0xFF):
        yield "widening", "i8", "inner_product", one, [b]
        yield "widening", "u8", "inner_product", one, [b]
    for b in (F_NEG_ZERO, F_DENORMAL, F_NEG_DENORMAL, 0x007FFFFF, 0x00800000, F_MAX, F_INF, F_NINF, F_NAN_PAYLOAD):
        yield "widening", "f32", "inner_product", one, [b]


def special_cases():
    tiny = f32(Fraction(1, 2**80))
    minus_tiny = tiny | F_NEG_ZERO
    # Products of -2^-160 round to -0 in every partial sum: the sum is -0, the score +0.
    yield "sum of -0", "f32", "inner_product", [tiny] * 128, [minus_tiny] * 128
    yield "sum of -0, half", "f32", "inner_product", [tiny] * 64, [minus_tiny] * 64
    yield "signed zeros", "f32", "inner_product", [F_NEG_ZERO, 0, F_NEG_ZERO], [0, F_NEG_ZERO, F_NEG_ZERO]
    yield "cosine underflows to -0", "f32", "cosine", [f32(2**60)] * 2, [f32(-(2**62)), f32(2**62 - 2**38)]
    # The row's squared norm overflows, so that its inverse norm is 0.
    yield "infinite norm", "f32", "cosine", [f32(1), f32(2)], [f32(2**70), f32(-(2**70))]
    yield "infinite norm and dot", "f32", "cosine", [f32(2**60), f32(2)], [f32(2**70), f32(2**70)]
    yield "infinite element", "f32", "cosine", [f32(1), f32(2)], [F_INF, f32(1)]
    # Denormal operands, sums and results.
    yield "denormal rows", "f32", "inner_product", [f32(3), f32(5)], [F_DENORMAL, F_NEG_DENORMAL]
    yield "denormal result", "f32", "inner_product", [tiny, tiny], [f32(Fraction(3, 2**61)), f32(Fraction(-1, 2**64))]
    yield "denormal difference", "f32", "l2", [0x00800001], [0x00800000]
    yield "denormal square", "f32", "l2", [f32(Fraction(1, 2**72)), tiny], [f32(Fraction(3, 2**72)), minus_tiny]
    yield "denormal squared norm", "f32", "cosine", [f32(1), f32(3)], [f32(Fraction(1, 2**72)), f32(Fraction(3, 2**72))]
    yield "denormal f16 rows", "f16", "cosine", [f32(Fraction(1, 3)), f32(2), f32(-3)], [0x0001, 0x03FF, 0x8002]
    # Overflow.
    yield "overflow", "f32", "inner_product", [F_MAX], [f32(2)]
    yield "overflow in a step", "f32", "inner_product", [f32(1)] * 129, [F_MAX] + [0] * 127 + [F_MAX]
    yield "overflow in the tree", "f32", "inner_product", [f32(1), f32(1)], [F_MAX, F_MAX]
    yield "no overflow inside the fma", "f32", "inner_product", [f32(1)] + [0] * 127 + [f32(2)], (
        [F_MAX | F_NEG_ZERO] + [0] * 127 + [F_MAX])
    yield "-inf", "f32", "inner_product", [F_MAX], [f32(-2)]
    yield "distance overflows", "f32", "l2", [F_MAX], [F_MAX | F_NEG_ZERO]
    yield "square overflows", "f32", "l2", [f32(2**70)], [f32(-(2**70))]
    yield "largest halves", "f16", "inner_product", [f32(65504)] * 3, [0x7BFF] * 3
    yield "half below the overflow", "f32", "inner_product", [f32(1), f32(1)], [F_MAX, f32(2**102)]
    yield "half at the overflow", "f32", "inner_product", [f32(1), f32(1)], [F_MAX, f32(2**103)]
    # NaN: found, made, and with signs and payloads.
    yield "NaN in the query", "f32", "l2", [f32(1), F_NAN_PAYLOAD], [f32(1), f32(2)]
    yield "NaN in the row", "f16", "cosine", [f32(1), f32(1)], [0x3C00, 0xFE55]
    yield "inf times zero", "f32", "inner_product", [F_INF, f32(1)], [0, f32(1)]
    yield "inf minus inf", "f32", "l2", [F_INF], [F_INF]
    yield "inf and -inf", "bf16", "inner_product", [f32(1), f32(1)], [0x7F80, 0xFF80]
    yield "-inf and a number", "bf16", "inner_product", [f32(1), f32(1)], [0xFF80, 0x7F7F]
    yield "inf far from the padding", "f32", "inner_product", [f32(1)] * 129, [F_INF] + [f32(1)] * 128
    # Zero vectors under cosine come before everything else, NaN included.
    yield "zero row", "f32", "cosine", [f32(1), f32(2)], [0, F_NEG_ZERO]
    yield "zero row of bytes", "u8", "cosine", [f32(1), f32(2)], [0, 0]
    yield "zero query", "i8", "cosine", [0, F_NEG_ZERO], [0x80, 0x7F]
    yield "zero query, NaN row", "f32", "cosine", [0, 0], [F_NAN, f32(1)]
    yield "zero row, NaN query", "f32", "cosine", [F_NAN, f32(1)], [0, 0]
    yield "zero row, infinite query", "f32", "cosine", [F_INF, f32(1)], [0, 0]
    yield "underflowing row", "f32", "cosine", [f32(1), f32(2)], [tiny, minus_tiny]
    yield "underflowing query", "f32", "cosine", [tiny, tiny], [f32(1), f32(2)]
    # Cancellation: what a wrong order of additions or a lost fma would change.
    big = f32(2**24)
    yield "the fma is one rounding", "f32", "inner_product", (
        [f32(1)] + [0] * 127 + [f32(1 + Fraction(1, 2**12))]), (
        [f32(-1)] + [0] * 127 + [f32(1 + Fraction(1, 2**12))])
    yield "the fma of a square is one rounding", "f32", "l2", (
        [f32(Fraction(1, 2**12))] + [0] * 127 + [f32(1 + Fraction(1, 2**12))]), [0] * 129
    yield "order of steps", "f32", "inner_product", [f32(1)] * 257, (
        [big] + [0] * 127 + [f32(1)] + [0] * 127 + [big | F_NEG_ZERO])
    for partner in (1, 2, 4, 8, 16, 32, 64):  # the pair that a tree of another shape would not add first
        row = [0] * 128
        row[0], row[partner] = big, big | F_NEG_ZERO
        row[3 if partner != 1 else 2] = f32(1)
        row[(3 if partner != 1 else 2) ^ partner] = f32(3)
        yield f"tree at {partner}", "f32", "inner_product", [f32(1)] * 128, row
    yield "inexact difference", "f32", "l2", [f32(2**24), f32(Fraction(1, 3))], [f32(Fraction(-1, 2)), f32(2**20)]
    yield "equal vectors", "f32", "l2", [f32(Fraction(1, 3)), F_MAX, F_DENORMAL], [f32(Fraction(1, 3)), F_MAX, F_DENORMAL]
    yield "bytes against a fraction", "u8", "l2", [f32(Fraction(1, 3))] * 130, [0xFF] * 130
    yield "signed bytes at their ends", "i8", "l2", [f32(Fraction(255, 2))] * 130, [0x80] * 130
    yield "ties of rounding", "f32", "inner_product", [f32(1)] * 3, [big, 0, f32(1)]
    yield "ties of rounding, odd", "f32", "inner_product", [f32(1)] * 3, [f32(2**24 + 2), 0, f32(1)]


def documented_cases():
    """The example of docs/ordering.md."""
    query = [f32(Fraction(3, 2)), f32(-2), f32(Fraction(1, 10))]
    for row in ((2, Fraction(1, 4), 3), (Fraction(1, 2), Fraction(3, 4), 3), (2, Fraction(1, 4), -1)):
        for metric in METRICS:
            yield "the example of docs/ordering.md", "f32", metric, query, [f32(v) for v in row]


def literal(values, width):
    """A C++ string literal of hex digits, in lines that fit the page."""
    digits = "".join(f"{v:0{width}X}" for v in values)
    lines = [digits[i : i + 112] for i in range(0, len(digits), 112)]
    return "\n     ".join(f'"{line}"' for line in lines)


def main():
    print("// Made by tools/golden_vectors.py, in exact arithmetic. Each line: what, element type, metric, dim, the query's")
    print("// fp32 bits, the row's elements' bits, and the bits of the score that docs/ordering.md defines.")
    cases = (*documented_cases(), *random_cases(), *widening_cases(), *special_cases())
    for what, element_type, metric, query, row in cases:
        row = list(row)
        assert len(query) == len(row)
        q = [decode("f32", b) for b in query]
        x = [decode(element_type, b) for b in row]
        result = encode_f32(score(metric, q, x))
        print(f'    {{"{what}", element_type::{element_type}, metric::{metric}, {len(row)},')
        print(f"     {literal(query, 8)},")
        print(f"     {literal(row, WIDTH[element_type])},")
        print(f"     0x{result:08X}u}},")


if __name__ == "__main__":
    main()

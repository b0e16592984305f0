#!/usr/bin/env python3
"""Makes data/logits: the logits of a small language model, from the passages of data/help_wiki.

The model counts words and their neighbours. The logit of a word after two others is the logarithm of a mix of how often
it stands there, how often it follows the second of the two, and how often it occurs at all. Everything is decided by
the passages: the same files come out every time.

    python3 tools/make_logits.py
"""
import collections
import math
import pathlib
import re
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
PASSAGES = ROOT / "data" / "help_wiki" / "passages.tsv"
FOLDER = ROOT / "data" / "logits"

VOCAB = 8192    # words; a word that is rarer is not counted, nor what it stands beside
CONTEXTS = 24   # as many as stay under 400 kB
MIX = (0.6, 0.3, 0.1)  # of two words before, one, none: each word keeps a share, so that no logit is -inf
FEWEST_WORDS = 5  # of a context: enough to read
SEEN = 5          # how often a context's last two words occur, so that several words can follow

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[.,]")


def read_texts():
    lines = PASSAGES.read_text(encoding="utf-8").splitlines()
    return [WORD.findall(line.split("\t")[3]) for line in lines]


def most_frequent(texts):
    """The vocabulary: more frequent words first, of equals in the order of their code points."""
    counts = collections.Counter(word for text in texts for word in text)
    return sorted(counts, key=lambda word: (-counts[word], word))[:VOCAB]


def count(texts, ids):
    """How often each run of one, two and three words of the vocabulary occurs."""
    counts = collections.Counter()
    for text in texts:
        run = ()
        for word in text:
            run = (*run[-2:], ids[word]) if word in ids else ()
            for length in range(1, len(run) + 1):
                counts[run[-length:]] += 1
    return counts


def choose_contexts(texts, ids, counts):
    """The first words of passages that are evenly spread over the file."""
    contexts = []
    for part in range(CONTEXTS):
        for text in texts[part * len(texts) // CONTEXTS:]:
            ends = (end for end in range(FEWEST_WORDS, len(text))
                    if counts[tuple(ids.get(word) for word in text[end - 2:end])] >= SEEN)
            end = next(ends, None)
            if end and end <= 2 * FEWEST_WORDS:
                contexts.append(text[:end])
                break
    return contexts


def logits_after(pair, counts, all_words):
    shares = (lambda word: counts[(*pair, word)] / counts[pair],
              lambda word: counts[(pair[1], word)] / counts[pair[1:]],
              lambda word: counts[(word,)] / all_words)
    return [math.log(sum(part * share(word) for part, share in zip(MIX, shares))) for word in range(VOCAB)]


def npy_header(rows, cols):
    """As NumPy writes it: the data at a multiple of 64 bytes."""
    text = f"{{'descr': '<f2', 'fortran_order': False, 'shape': ({rows}, {cols}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("ascii")


def main():
    texts = read_texts()
    words = most_frequent(texts)
    ids = {word: i for i, word in enumerate(words)}
    counts = count(texts, ids)
    contexts = choose_contexts(texts, ids, counts)
    all_words = sum(counts[(i,)] for i in range(VOCAB))

    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / "logits.npy", "wb") as file:
        file.write(npy_header(len(contexts), VOCAB))
        for context in contexts:
            pair = tuple(ids[word] for word in context[-2:])
            file.write(struct.pack(f"<{VOCAB}e", *logits_after(pair, counts, all_words)))
    for name, lines in (("vocabulary.txt", words), ("contexts.txt", map(" ".join, contexts))):
        (FOLDER / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Draws a next word for each of 24 recorded contexts, in three ways, and prints what was likely.

usage: sample_logits.py [FOLDER]: that of logits.npy, contexts.txt and vocabulary.txt, made by tools/make_logits.py
"""

import pathlib
import sys

import numpy as np
import shortlist as sl

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "data/logits")
logits = np.load(folder / "logits.npy")
contexts = (folder / "contexts.txt").read_text().splitlines()
words = (folder / "vocabulary.txt").read_text().splitlines()

# One seed for all, and for every row another offset: no two draws share a random number.
offsets = np.arange(len(contexts))
ways = {
    "greedy": sl.sample(logits, temperature=0),
    "t 0.8, top_k 50, top_p 0.95": sl.sample(logits, temperature=0.8, top_k=50, top_p=0.95, seed=7, offset=offsets),
    "min_p 0.1": sl.sample(logits, min_p=0.1, seed=8, offset=offsets),
}
likely = sl.sample(logits, details=True, top_n=3)

for row, context in enumerate(contexts):
    print(f"{context} ...")
    best = zip(likely.top_tokens[row], likely.top_logprobs[row])
    print("  likely: " + " ".join(f"{words[token]} ({logprob:.3f})" for token, logprob in best))
    for name, tokens in ways.items():
        print(f"  {name}: {words[tokens[row]]}")

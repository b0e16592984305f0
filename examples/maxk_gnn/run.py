#!/usr/bin/env python3
"""MaxK-GNN with torch.topk, and with Shortlist's exact and early-stopped selection: accuracy, and time of a step.

  python run.py accuracy --data FOLDER          trains on every graph of FOLDER/*.npz, with each activation and seed
  python run.py step                            times a training step on made-up graphs of Reddit's size

Both write their part of the record `--out`; report.py makes the tables and the picture of it.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys

import torch
import torch_geometric

import graphs
import models
import shortlist as sl
import training

# Neighbours of a node: what GraphSAGE samples in its two layers, four times as many, and Reddit's mean (114.6 M edges).
DEGREES = (10, 25, 100, 492)
STEP_ACTIVATIONS = ("torch", "exact", "max_iter4")
STEP_ROUNDS, STEPS_IN_A_ROUND = 5, 4
SEED = 1


def accuracy(arguments, device):
    """A record for each graph, layer and activation."""
    for name in arguments.graphs or sorted(path.stem for path in arguments.data.glob("*.npz")):
        graph = graphs.load(arguments.data / f"{name}.npz", device)
        nodes = len(graph.classes)
        splits = [graphs.split(nodes, seed, device) for seed in range(arguments.seeds)]
        for layer in arguments.layers:
            adjacency = graphs.adjacency_for(layer, graph)
            for activation in arguments.activations:
                runs = [
                    training.train(layer, activation, graph, adjacency, split, arguments.epochs, seed)
                    for seed, split in enumerate(splits)
                ]
                reached = [run.accuracy for run in runs]
                yield {
                    "work": f"maxk_gnn/{layer}/{name}/{activation}",
                    "ms": statistics.median(run.step_ms for run in runs),
                    "selection_ms": None
                    if activation == "relu"
                    else training.selection_ms(activation, nodes, device),
                    "accuracy": reached,
                    "nodes": nodes,
                    "edges": len(graph.rows),
                    "epochs": arguments.epochs,
                }


def step(arguments, device):
    """A record for each layer, degree and activation; the activations take turns."""
    for degree in arguments.degrees:
        graph = graphs.synthetic(arguments.nodes, degree, SEED, device)
        everyone = torch.arange(arguments.nodes, device=device)
        for layer in arguments.layers:
            adjacency = graphs.adjacency_for(layer, graph)
            trainers = {
                name: training.Trainer(layer, name, graph, adjacency, everyone, SEED) for name in STEP_ACTIVATIONS
            }
            times = {name: [] for name in trainers}
            for _ in range(STEP_ROUNDS):
                for name, trainer in trainers.items():
                    times[name].append(training.milliseconds(trainer.step, STEPS_IN_A_ROUND, device))
            product = training.product_ms(adjacency, arguments.nodes, device)
            for name in trainers:
                yield {
                    "work": f"maxk_gnn/{layer}/{graph.name}/{name}",
                    "ms": statistics.median(times[name]),
                    "selection_ms": training.selection_ms(name, arguments.nodes, device),
                    "products_ms": product,
                    "nodes": arguments.nodes,
                    "edges": len(graph.rows),
                }
            del trainers, adjacency  # before the next ones take memory


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    both.add_argument("--out", default="maxk_gnn.json", type=pathlib.Path, help="the record, kept and added to")
    both.add_argument("--layers", nargs="+", default=models.LAYERS, choices=models.LAYERS)

    part = commands.add_parser("accuracy", parents=[both])
    part.set_defaults(measure=accuracy)
    part.add_argument("--data", required=True, type=pathlib.Path, help="a folder of .npz files; graphs.load reads them")
    part.add_argument("--graphs", nargs="+", help="names of some; by default all")
    part.add_argument("--activations", nargs="+", default=models.ACTIVATIONS, choices=models.ACTIVATIONS)
    part.add_argument("--seeds", type=int, default=5, help="seeds 0 to this - 1: of the split, the weights and dropout")
    part.add_argument("--epochs", type=int, default=200)

    part = commands.add_parser("step", parents=[both])
    part.set_defaults(measure=step)
    part.add_argument("--nodes", type=int, default=graphs.REDDIT_NODES)
    part.add_argument("--degrees", type=int, nargs="+", default=DEGREES)
    return parser.parse_args()


def machine(device):
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else sl.devices()[0].description
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"], capture_output=True, text=True
    ).stdout.strip()
    return {
        "machine": name,
        "commit": commit or "unknown",
        "library": sl.__version__,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def main():
    arguments = parse_arguments()
    torch.set_float32_matmul_precision("high")  # TF32, as training is done; the same for every activation
    document = {"campaign": "maxk_gnn", "runs": {}, "records": []}
    if arguments.out.exists():
        document = json.loads(arguments.out.read_text(encoding="utf-8"))
    part = arguments.measure.__name__
    command = " ".join(["python examples/maxk_gnn/run.py", *sys.argv[1:]])
    document["runs"][part] = {**machine(arguments.device), "command": command}
    for record in arguments.measure(arguments, arguments.device):
        print(json.dumps(record), flush=True)
        document["records"] = [r for r in document["records"] if r["work"] != record["work"]] + [record]
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""examples/maxk_gnn on a small graph: what it writes, and that selections of the same set train alike."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("torch_geometric") is None,
    reason="torch and torch-geometric are not installed",
)

NODES, CLASSES, NEIGHBOURS = 500, 3, 6


def write_graph(path):
    """Nodes that rather know nodes of their own class, and features that tell it to a third of them."""
    random = np.random.default_rng(1)
    classes = random.integers(0, CLASSES, NODES)
    alike = random.random((NODES, NEIGHBOURS)) < 0.4
    wanted = np.where(alike, classes[:, None], random.integers(0, CLASSES, (NODES, NEIGHBOURS)))
    indices = np.array([[random.choice(np.nonzero(classes == c)[0]) for c in row] for row in wanted])
    told = np.where(random.random(NODES) < 0.3, classes, random.integers(0, CLASSES, NODES))
    np.savez(path, indptr=np.arange(0, indices.size + 1, NEIGHBOURS), indices=indices.reshape(-1).astype(np.int32),
             x_indptr=np.arange(NODES + 1), x_indices=told.astype(np.int32), x_data=np.ones(NODES, np.float32),
             x_cols=CLASSES, y=classes)  # fmt: skip


def run(repository, *arguments):
    script = repository / "examples/maxk_gnn/run.py"
    done = subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_accuracy_and_step(repository, tmp_path):
    write_graph(tmp_path / "small.npz")
    out = tmp_path / "record.json"
    common = ("--device", "cpu", "--out", out)
    run(repository, "accuracy", *common, "--layers", "gcn", "--data", tmp_path, "--seeds", 2, "--epochs", 30,
        "--activations", "torch", "exact", "max_iter2")  # fmt: skip
    run(repository, "step", *common, "--layers", "sage", "--nodes", 200, "--degrees", 4)
    document = json.loads(out.read_text())
    assert set(document["runs"]) == {"accuracy", "step"}
    records = {record["work"]: record for record in document["records"]}
    assert set(records) == {f"maxk_gnn/gcn/small/{name}" for name in ("torch", "exact", "max_iter2")} | {
        f"maxk_gnn/sage/synthetic_degree4/{name}" for name in ("torch", "exact", "max_iter4")
    }
    assert all(record["ms"] > record["selection_ms"] > 0 for record in records.values())
    small = {name: records[f"maxk_gnn/gcn/small/{name}"]["accuracy"] for name in ("torch", "exact", "max_iter2")}
    assert small["exact"] == small["torch"]
    assert min(small["exact"] + small["max_iter2"]) > 0.37  # by chance it is a third

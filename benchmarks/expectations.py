"""What a machine's records are to reach, and figures from elsewhere, marked as such: from targets.json and
peers/anchors.json, by the name of the machine's folder. Used by run_campaign.py, and by report.py, so that tables tell
them of a record whose run was given another name."""

import json
import pathlib

import verdicts

HERE = pathlib.Path(__file__).resolve().parent
ANCHORS = json.loads((HERE / "peers/anchors.json").read_text(encoding="utf-8"))
TARGETS = json.loads((HERE / "targets.json").read_text(encoding="utf-8"))


def add(document, machine):
    """Anchors where the run has no figure of that name, and targets."""
    anchors = ANCHORS.get(machine, {})
    targets = TARGETS.get(machine, {})
    for record in document["records"]:
        if not record["verified"]:
            continue
        for name, anchor in anchors.get(verdicts.peers_work(record["work"]), {}).items():
            record.setdefault("peers", {}).setdefault(name, anchor)
        target = targets.get(record["work"], {})
        for name, value in (target if isinstance(target, dict) else {"ms": target}).items():
            record[f"target_{name}"] = value

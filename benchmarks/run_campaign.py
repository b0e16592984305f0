#!/usr/bin/env python3
"""Runs one campaign: this project's measurements, then the peers that the machine has, merged into one JSON file.

  ./run bench --campaign seeds                      on a checkout: builds first
  python3 benchmarks/run_campaign.py --program bin/shortlist_bench --campaign seeds      from an unpacked package

The file is benchmarks/results/<machine>/<campaign>.json; benchmarks/report.py makes the tables of docs/benchmarks.md
from it. Python's standard library is enough; the peers need what they are (see benchmarks/peers/requirements.txt).
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import expectations
import machine_load
import rows_accuracy
import verdicts

HERE = pathlib.Path(__file__).resolve().parent
CAMPAIGNS = {
    "seeds": "the 45 configurations N x D x K: resident on the GPU, on the CPU, and the round trip between them",
    "flat_gpu": "the table of targets on the GPU: shapes, types, batches, distributions, k, allocations, threads, "
    "and where the CPU is faster",
    "flat_cpu": "one query and batches on the CPU, beside its read bandwidth",
    "flat_certified": "the same through an int8 plane, with how many rows survive its filter, and the worst data for it",
    "flat_certified_gpu": "certified search on the GPU: one query, batches and the worst data for a filter",
    "flat_host_rows": "a corpus beyond the GPU's memory: its plane there, its rows in the host's",
    "rows": "row-wise top k on the CPU and the GPU: shapes, types, k, hard data, early stops and how exact these are",
    "logits": "top k of long rows, and sampling a token of each, on the CPU and the GPU: shapes, types, filters",
    "ivf_pq": "IVF-PQ on the GPU, 10M x 96: what each code reaches, building, recall and time, batches, one query, large k",
    "ivf_pq_billion": "IVF-PQ on the GPU, 10^9 x 96, codes only: building, recall and time",
    "ivf_pq_wide": "IVF-PQ on the GPU, 1M x 768: building, recall and time, batches, one query, k 100",
}
PEERS = {
    "torch": "peers_torch.py",
    "faiss": "peers_faiss.py",
    "torch_rows": "peers_torch_rows.py",
    "torch_logits": "peers_torch_logits.py",
    "numpy_rows": "peers_numpy_rows.py",
}
PEERS_OF = {
    "seeds": ["torch", "faiss"],
    "flat_gpu": ["torch"],
    "flat_cpu": ["faiss"],
    "flat_certified": ["faiss"],
    "flat_certified_gpu": ["torch"],
    "flat_host_rows": [],
    "rows": ["torch_rows", "numpy_rows"],
    "logits": ["torch_rows", "torch_logits"],
    "ivf_pq": [],
    "ivf_pq_billion": [],
    "ivf_pq_wide": [],
}
# Whether a Python can run a peer, asked of it before the peer is started.
PROBES = {
    "torch": "import torch, sys; sys.exit(not torch.cuda.is_available())",
    "faiss": "import faiss, numpy",
    "torch_rows": "import torch, numpy",
    "torch_logits": "import torch, numpy",
    "numpy_rows": "import numpy",
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def interpreters(given):
    """Where a peer's package may be installed, in order of preference."""
    candidates = [given, HERE.parent / ".venv/bin/python", sys.executable]
    return [str(c) for c in candidates if c and (shutil.which(str(c)) or pathlib.Path(c).is_file())]


def interpreter_with(peer, given):
    for python in interpreters(given):
        if subprocess.run([python, "-c", PROBES[peer]], capture_output=True).returncode == 0:
            return python
    return None


def install_peers():
    """FAISS and numpy into .venv; torch is the machine's own or none."""
    venv = HERE.parent / ".venv"
    if not venv.exists():
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
    requirements = HERE / "peers/requirements.txt"
    subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", "-r", requirements], check=True)


def driver_version():
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    found = subprocess.run(query, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def machine_name(machine, campaign):
    """ "h200" for a GPU's results, "cpu-16core-avx512" for a CPU's."""
    gpu = machine.get("gpu")
    if gpu and campaign not in verdicts.CPU_CAMPAIGNS:
        return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    isa = machine["library_cpu"].split(", ")[-1]
    return f"cpu-{machine['cores']}core-{isa}"


def measure(program, arguments, environment, folder, tag):
    """One run of shortlist_bench; (its document, whether every answer was right)."""
    out = folder / f"ours{tag}.json"
    command = [program, "--campaign", arguments.campaign, "--out", str(out)]
    if arguments.only:
        command += ["--only", arguments.only]
    if arguments.quick:
        command.append("--quick")
    code = subprocess.run(command, env=environment).returncode
    if not out.exists():
        sys.exit(f"run_campaign: {program} wrote no results (exit code {code})")
    return json.loads(out.read_text(encoding="utf-8")), code == 0


def add_peers(document, arguments, folder):
    works = folder / "works.json"
    jobs = dict.fromkeys(verdicts.peers_work(r["work"]) for r in document["records"])
    works.write_text(json.dumps(list(jobs)), encoding="utf-8")
    wanted = PEERS_OF[arguments.campaign] if arguments.peers is None else [p for p in arguments.peers.split(",") if p]
    document["peers"] = {}
    for peer in wanted:
        python = interpreter_with(peer, arguments.python)
        if python is None:
            say(f"run_campaign: the peer {peer} is left out: no Python here can use it")
            continue
        out = folder / f"{peer}.json"
        command = [python, str(HERE / "peers" / PEERS[peer]), "--works", str(works), "--out", str(out)]
        if arguments.quick:
            command.append("--quick")
        if subprocess.run(command).returncode != 0:
            say(f"run_campaign: the peer {peer} failed and is left out")
            continue
        found = json.loads(out.read_text(encoding="utf-8"))
        document["peers"][peer] = found["version"]
        for record in document["records"]:
            record.get("peers", {}).update(found["times"].get(verdicts.peers_work(record["work"]), {}))


def table(document):
    lines = [f"{'work':<60} {'ms':>10} {'limit':>10} {'share':>6}  best peer, targets"]
    for record in document["records"]:
        if not record["verified"]:
            lines.append(f"{record['work']:<60} WRONG: {record['error']}")
            continue
        notes = []
        peer = verdicts.best_peer(record)
        if peer:
            notes.append(
                f"{peer.name} {peer.ms:.4g} ms{' (anchor)' if peer.anchor else ''}: {peer.ms / record['ms']:.2f}x"
            )
        for verdict in verdicts.of(record):
            notes.append(
                f"{verdict.what} {verdict.reached}, target {verdict.target}: {'ok' if verdict.ok else 'MISSED'}"
            )
        lines.append(
            f"{record['work']:<60} {record['ms']:>10.4f} {record['limit_ms']:>10.4f} {record['share_of_limit']:>6.2f}  "
            + "; ".join(notes)
        )
    return "\n".join(lines)


def updated(file, document):
    """The record of a file, with this run's works in the place of its own, and those that it lacks behind the work that
    they follow in the run; each says which commit and day it is of."""
    if not file.exists():
        sys.exit(f"run_campaign: --update: there is no record {file}; a run without --only makes it")
    record = json.loads(file.read_text(encoding="utf-8"))
    for what in ("gpu", "cuda", "library_cpu"):
        was, now = record["machine"].get(what), document["machine"].get(what)
        if was != now:
            sys.exit(f"run_campaign: --update: {file} is of a machine whose {what} is {was}; this one's is {now}")
    origin = {what: document[what] for what in ("commit", "date", "load_before")}
    measured = {r["work"]: {**r, **origin} for r in document["records"]}
    for was in record["records"]:
        now = measured.get(was["work"], was)
        if now["verified"] and "ratio" in was and "ratio" not in now:
            sys.exit(f"run_campaign: --update: --only has to take the work that {was['work']} is compared with, too")
    works = [r["work"] for r in record["records"]]
    at = next((works.index(work) for work in measured if work in works), len(works))
    for work in measured:
        if work in works:
            at = works.index(work) + 1
        else:
            works.insert(at, work)
            at += 1
    kept = {r["work"]: r for r in record["records"]}
    record["records"] = [measured.get(work) or kept[work] for work in works]
    return record


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the built shortlist_bench")
    parser.add_argument("--campaign", help="what to measure; without it, the campaigns are listed")
    parser.add_argument("--only", metavar="SUBSTRING", help="only work whose name contains this")
    parser.add_argument(
        "--update", action="store_true", help="with --only: put that work's figures into the machine's record"
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions; for a look, not for a record")
    parser.add_argument("--machine", help="the folder of the results; by default named after the GPU or the CPU")
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        help="where machines' folders lie; by default benchmarks/results, "
        "or build/bench_results for a run that is --quick or has --only without --update",
    )
    parser.add_argument("--isa", metavar="NAMES", help="flat_cpu, flat_certified: also with these instruction sets forced, by comma")
    parser.add_argument("--peers", metavar="NAMES", help="which peers, by comma; '' for none")
    parser.add_argument("--python", help="a Python that has the peers' packages; also looked for: .venv, this one")
    parser.add_argument("--install-peers", action="store_true", help="put FAISS and numpy into .venv first")
    arguments = parser.parse_args()
    if arguments.campaign is not None and arguments.campaign not in CAMPAIGNS:
        parser.error(f"--campaign is {arguments.campaign}; allowed is {', '.join(CAMPAIGNS)}")
    if arguments.update and (arguments.quick or not arguments.only):
        parser.error("--update goes with --only, and not with --quick")
    if arguments.isa and arguments.campaign not in verdicts.CPU_CAMPAIGNS:
        parser.error("--isa goes with --campaign flat_cpu and flat_certified")
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.campaign is None:
        print("\n".join(f"{name:<14} {what}" for name, what in CAMPAIGNS.items()))
        print(f"{'ivf_pq_cpu':<14} IVF-PQ on the CPU, 1M x 96, beside FAISS's; ./run bench runs ivf_pq_peers.py")
        print(f"{'python':<14} what a call costs from Python over the same call from C++; ./run bench runs python_calls.py")
        return 0
    if arguments.install_peers:
        install_peers()
    program = shutil.which(arguments.program) or sys.exit(f"run_campaign: no program {arguments.program}")
    load = machine_load.busy_cores()
    if verdicts.is_busy(load, os.cpu_count()):
        say(
            f"run_campaign: the machine is busy ({load:.1f} of {os.cpu_count()} cores): the figures will be "
            "wrong, those of peers that spin while they wait above all"
        )

    # An unpacked package says what it was made of; a checkout around it may be of something else.
    for folder in (pathlib.Path(program).resolve().parent.parent, HERE.parent):
        if (folder / "COMMIT").exists():
            os.environ.setdefault("SHORTLIST_COMMIT", (folder / "COMMIT").read_text(encoding="utf-8").strip())

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        document, right = measure(program, arguments, os.environ, folder, "")
        for isa in (arguments.isa or "").split(","):
            if isa:
                forced, isa_right = measure(program, arguments, {**os.environ, "SHORTLIST_FORCE_ISA": isa}, folder, isa)
                document["records"] += forced["records"]
                right = right and isa_right
        add_peers(document, arguments, folder)
    driver = driver_version()
    if driver and "gpu" in document["machine"]:
        document["machine"]["driver"] = driver
    machine = arguments.machine or machine_name(document["machine"], arguments.campaign)
    expectations.add(document, machine)
    for record in document["records"]:
        if record["verified"]:
            record.update(verdicts.cpu_targets(record, document["machine"]))
    document["quick"] = arguments.quick
    document["load_before"] = load

    partial = arguments.quick or (arguments.only and not arguments.update)
    results = arguments.results or (HERE.parent / "build/bench_results" if partial else HERE / "results")
    print(table(document))
    tables = rows_accuracy.tables(document)
    if tables:
        print("\n" + "\n".join(tables).rstrip())
    file = results / machine / f"{arguments.campaign}.json"
    written = updated(file, document) if arguments.update else document
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {file}")
    if not right:
        say("run_campaign: an answer was wrong or work failed; see WRONG above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

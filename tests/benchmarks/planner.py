"""How long the planner takes, as whole processes: `python -m tests.benchmarks.planner`, exit 1 on a missed goal.

Goals, on two cores with a warm file cache: `validate` under 0.4 s and `plan` under 3 s for the published system of 278
nodes, under 5 s with all numbers of its layouts left to the planner, and under 10 s for a list of 10,000 nodes. Growth
from 10 to 10,000 nodes is printed with the memory that it takes. Each number is the best of several runs: what else the
machine does only adds. User and system time are printed beside, for machines that are never idle. Modules are compiled,
as an installation leaves them, even where PYTHONDONTWRITEBYTECODE is set: without, each run would compile them anew,
which takes half as long again.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from planner.spec.yaml import read_document

SPECS = Path(__file__).parents[2] / "stacks" / "specs"
PUBLISHED = SPECS / "deepseek-h800.yaml"
GOALS = {"validate": 0.4, "plan": 3.0, "auto": 5.0, "10,000 nodes": 10.0}
RUNS = 5
FREE = ("ep_size", "redundant_experts", "units", "attention_tp", "max_requests", "max_batch_tokens")
NODES_PER_PAIR = 22  # 4 of a prefill unit, 18 of a decode unit


def main():
    """Print every measurement, and say which goals were missed."""
    folder = Path(tempfile.mkdtemp())
    measured = {
        "validate": best(["validate", PUBLISHED]),
        "plan": best(["plan", PUBLISHED, "-o", folder / "plan.json"]),
        "auto": best(["plan", with_auto(folder), "-o", folder / "plan.json"]),
    }
    for num_nodes in (10, 100, 1000, 10_000):
        path = folder / f"{num_nodes}.yaml"
        path.write_text(listed(num_nodes))
        measured[f"{num_nodes:,} nodes"] = best(["plan", path, "-o", folder / "plan.json"], runs=2)
    print(f"{'':14}{'wall s':>8}{'cpu s':>8}{'MB':>8}{'goal s':>8}")
    missed = []
    for name, (wall, cpu, megabytes) in measured.items():
        goal = GOALS.get(name)
        print(f"{name:14}{wall:8.2f}{cpu:8.2f}{megabytes:8.0f}{goal or '':>8}")
        missed += [name] if goal and wall > goal else []
    print(f"missed: {', '.join(missed)}" if missed else "all goals are met")
    return int(bool(missed))


def with_auto(folder):
    """The published system without its layouts, its points and its day, under an SLO."""
    spec = read_document(PUBLISHED).data
    kept = {key: spec[key] for key in ("version", "name", "model", "cluster", "traffic", "expert_load")}
    phases = {phase: spec[phase] | dict.fromkeys(FREE, "auto") for phase in ("prefill", "decode")}
    path = folder / "auto.yaml"
    path.write_text(json.dumps(kept | phases | {"slo": {"tpot_ms": 60, "ttft_ms": 5000}}))
    return path


def best(words, runs=RUNS):
    """The least wall seconds, CPU seconds and megabytes of several runs of the command."""
    return tuple(map(min, zip(*(run(words) for _ in range(runs)), strict=True)))


def run(words):
    """One run: wall seconds, CPU seconds, megabytes at most."""
    command = [sys.executable, "-c", "import sys; from stacks.cli import main; sys.exit(main())", *map(str, words)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def listed(num_nodes):
    """A spec that lists its nodes, and fills most of them with pairs of the published units; small ones with EP16."""
    pairs = num_nodes // NODES_PER_PAIR
    prefill, decode = (pairs, 32), (pairs, 144)
    if not pairs:
        prefill, decode = (1, 16), (1, 16)
    nodes = "".join(
        f"    - {{name: gpu-{i:05}, rack: r{i // 4}, leaf: l{i // 32}, gpus: 8}}\n" for i in range(num_nodes)
    )
    phases = "".join(
        f"{phase}: {{units: {units}, ep_size: {size}, redundant_experts: 32, precision: fp8, max_requests: 16}}\n"
        for phase, (units, size) in (("prefill", prefill), ("decode", decode))
    )
    head = "version: 1\nname: listed\nmodel: deepseek-r1\ncluster:\n  gpu: h800\n  gpus_per_node: 8\n  nodes:\n"
    return f"{head}{nodes}{phases}"


if __name__ == "__main__":
    sys.exit(main())

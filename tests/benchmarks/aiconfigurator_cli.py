"""Asks AIConfigurator 0.12.0 by its command, which is installed in an environment of its own.

Its FP8 attention with FP8 KV is the only one that its H100 tables of large EP have, so that KV is FP8 in all answers.
How tokens choose experts cannot be said: skewed, by its own model of routing. Source: PyPI aiconfigurator 0.12.0.
"""

import csv
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

__all__ = ["Answer", "Found", "Run", "estimate", "run", "search"]

MODEL, SYSTEM, BACKEND = "deepseek-ai/DeepSeek-V3", "h100_sxm", "sglang"
FALLBACK = re.compile(r"requested (EP\d+)/\S+; using (EP\d+)/")


@dataclass(frozen=True)
class Run:
    """A command, and what it took."""

    returncode: int
    output: str
    wall_s: float
    cpu_s: float
    memory_mb: float


@dataclass(frozen=True)
class Answer:
    """What it says of one layout; `note` says what it took in place of what was asked."""

    ms: float | None  # of the step, or TPOT
    tokens_per_s_per_gpu: float | None
    note: str


@dataclass(frozen=True)
class Found:
    """Its best layout of one kind: the row of its table."""

    row: dict[str, str]

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Return its output tokens/s over all GPUs of the cluster."""
        return float(self.row["tokens/s/gpu_cluster"])


def run(*command: str, cwd: Path | None = None) -> Run:
    """Run a command and count its CPU time and its memory, those of its children included."""
    began = perf_counter()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, env=environment
    )
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = perf_counter() - began
    return Run(process.returncode, output, wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def estimate(
    executable: str,
    mode: str,
    ep_size: int,
    attention_tp: int,
    batch: int,
    isl: int,
    osl: int,
    system: str = SYSTEM,
) -> Answer:
    """Ask for one layout: `static_ctx` and `static_gen` are a step of prefill and of decode, `agg` a mixed unit."""
    made = run(
        *(executable, "cli", "estimate", "--model-path", MODEL, "--system", system, "--backend", BACKEND, "--no-color"),
        *("--estimate-mode", mode, "--isl", str(isl), "--osl", str(osl), "--batch-size", str(batch)),
        *("--tp", str(attention_tp), "--dp", str(ep_size // attention_tp), "--etp", "1", "--ep", str(ep_size)),
    )
    if made.returncode:
        return Answer(None, None, _reason(made.output))
    fallback = FALLBACK.search(made.output)
    note = f"exchanges of {fallback[1]} from tables of {fallback[2]} on one node" if fallback else ""
    ms = float(re.search(rf"{'TTFT' if mode == 'static_ctx' else 'TPOT'}:\s+([\d.,]+) ms", made.output)[1])
    if mode == "static_ctx":
        return Answer(ms, batch * isl / attention_tp / ms * 1e3, note)
    rate = re.search(r"tokens/s/gpu:\s+([\d.,]+)", made.output)[1]
    return Answer(ms, float(rate.replace(",", "")), note)


def search(
    executable: str, num_gpus: int, isl: int, osl: int, ttft: int, tpot: int, folder: Path
) -> tuple[Run, dict[str, Found]]:
    """Ask for its best layouts: of mixed units (`agg`) and of both phases apart (`disagg`)."""
    made = run(
        *(executable, "cli", "default", "--model-path", MODEL, "--system", SYSTEM, "--backend", BACKEND, "--no-color"),
        *(
            "--total-gpus",
            str(num_gpus),
            "--isl",
            str(isl),
            "--osl",
            str(osl),
            "--ttft",
            str(ttft),
            "--tpot",
            str(tpot),
        ),
        *("--save-dir", str(folder)),
    )
    found = {}
    for path in folder.rglob("best_config_topn.csv"):
        with path.open() as file:
            found[path.parent.name] = Found(next(csv.DictReader(file)))
    return made, found


def _reason(output: str) -> str:
    said = [line for line in output.splitlines() if line.startswith("Error:")]
    return said[-1].removeprefix("Error: ")[:60] if said else "it fails"

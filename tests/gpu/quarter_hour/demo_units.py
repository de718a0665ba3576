"""The demo served by a prefill unit and a decode unit of two ranks each: four processes that share one GPU.

    python -m tests.gpu.quarter_hour.demo_units -o FIGURES.json [--device cpu] [--one-host]

What `tidemill up` starts, it starts here: the launch files that the planner writes, a process for each node and one for
its rank, certificates, the gateway, an address of loopback for each. `up` itself refuses GPUs. In this plan every rank
is alone on its node, so each is local rank 0 and takes GPU 0, as on a cluster of such nodes. The runtime keeps its rule
of a GPU for each local rank, and does not learn that its nodes are one machine.

NCCL must not learn it either, since it refuses two ranks on one GPU of one host. So each node gets a host id of its own
(`NCCL_HOSTID`), and rows travel over NCCL's sockets as they would between nodes. `--one-host` leaves that out: from
2.30 on NCCL lets ranks of one host share a GPU where it is told to (`NCCL_MULTI_RANK_GPU_ENABLE`).

Texts are compared with those of one process on the CPU in the same precision, up to where a rounding decides otherwise.
Some questions are those whose answers the demo was trained to give.

The latencies are no user's: the model is tiny, and four ranks share the GPU.

Source: github.com/NVIDIA/nccl 5067397c src/init.cc (`initTransportsRank`) and src/misc/utils.cc (`getHostHashOnce`).
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from runtime.worker.cpus import usable_cpus
from tests.gpu.quarter_hour.demo_answers import (
    MAX_TOKENS,
    Question,
    Wrong,
    ask,
    ask_all,
    compared,
    continued_prompts,
    latencies,
    long_prompts,
    prompt_tokens,
    trained_questions,
)
from tests.gpu.quarter_hour.demo_deployment import SHARED_GPU, Deployment, planned, served
from tests.gpu.quarter_hour.mps import shared_gpu
from tests.gpu.quarter_hour.parts import MISSING
from tests.stacks.deployments import CHECKPOINT, REPOSITORY

READY_S = 60  # of 120: the rest is for questions and for the end
REST_S = 50  # after it, until all is ended
NUM_COMPUTING = 5  # processes: four ranks, and the CPU's reference
NUM_ALONE = 5
NUM_RANKS = 4
# BF16 rounds otherwise on another device, and a tie decided otherwise is another text from there on.
LEAST_MEDIAN_EQUAL = 8  # tokens, as in tests/gpu/test_ranks.py
LEAST_EXACT = 0.75  # of the trained answers


class Figures(dict[str, Any]):
    """What was found so far, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, **found: Any) -> None:
        """Print what was found, and write all of it."""
        self.update(found)
        print(json.dumps(found), flush=True)
        self._path.write_text(json.dumps(self))


def main() -> int:
    """Start everything, ask, compare, and end everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, dest="output", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--one-host", action="store_true", help="let NCCL know that the ranks share a GPU")
    parser.add_argument("--ready-s", type=float, default=READY_S)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU")
        return MISSING
    given = SHARED_GPU | {"OMP_NUM_THREADS": str(max(1, usable_cpus() // NUM_COMPUTING))}
    os.environ.update(given | os.environ)
    figures = Figures(arguments.output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(int(arguments.ready_s + REST_S))  # so that logs are shown and nothing is left
    with tempfile.TemporaryDirectory(prefix="demo-units-", ignore_cleanup_errors=True) as folder:
        try:
            with shared_gpu() if arguments.device == "cuda" else nullcontext({}) as variables:
                os.environ.update(variables)
                figures.keep(shares_by_mps=bool(variables))
                try_it(Path(folder), figures, arguments.device, arguments.one_host, arguments.ready_s)
        except Wrong as found:
            print(f"wrong: {found}")
            return 1
    print("right")
    return 0


def _give_up(*_: object) -> None:
    raise Wrong("it takes too long")


def try_it(folder: Path, figures: Figures, device: str, one_host: bool, ready_s: float) -> None:
    """Serve, ask and compare. Raise Wrong."""
    plan = planned(folder, device)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    prompts = long_prompts(tokenizer)
    with computed_on_the_cpu(folder, prompts) as reference, served(plan, folder, one_host) as deployment:
        figures.keep(ready_s=deployment.wait_until_ready(ready_s), said=deployment.said())
        questions = trained_questions() + continued_prompts(prompts, reference.tokens())
        figures.keep(first_answers_s=seconds_of_first_answers(deployment, questions))
        with deployment.counted() as counted:
            answers = ask_all(deployment.endpoint, questions)
        if device == "cuda":
            figures.keep(gpu_memory=used_memory())
        figures.keep(**transfers(counted), **latencies(answers), **compared(questions, answers, tokenizer))
        with deployment.counted() as alone:
            for _ in range(NUM_ALONE):
                ask(deployment.endpoint, questions[-1], is_stream=True)
        figures.keep(longest_alone=transfers(alone))
        deployment.require_alive()
    figures.keep(ended_s=deployment.ended_s, left=deployment.left)
    require_right(figures, device, sum(prompt_tokens(each, tokenizer) for each in questions))


class Reference:
    """`tidemill generate` in one process on the CPU, in BF16, while the units start."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tokens(self) -> list[list[int]]:
        """Wait for the continuations. Raise Wrong."""
        try:
            output, said = self._process.communicate(timeout=READY_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"generate on the CPU takes more than {READY_S} s") from None
        if self._process.returncode:
            raise Wrong(f"generate on the CPU failed: {said[-500:]}")
        outputs: list[list[int]] = json.loads(output)["outputs"]
        return outputs


@contextmanager
def computed_on_the_cpu(folder: Path, prompts: list[list[int]]) -> Iterator[Reference]:
    """Begin to continue the prompts."""
    asked = folder / "prompts.json"
    asked.write_text(json.dumps(prompts))
    flags = ("--prompt-ids", str(asked), "--max-tokens", str(MAX_TOKENS), "--dtype", "bfloat16")
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime", "generate", "bundled:demo", *flags],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reference(process)
    finally:
        process.kill()
        process.wait()


def used_memory() -> str:
    """Return how much of the GPU's memory is in use, as its driver says it, and of how much."""
    asked = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def seconds_of_first_answers(deployment: Deployment, questions: Sequence[Question]) -> float:
    """Ask a short and a long question before anything is timed: kernels are compiled as they are first called."""
    began = time.monotonic()
    for question in (questions[0], questions[-1]):
        ask(deployment.endpoint, question, is_stream=True)
    return round(time.monotonic() - began, 2)


def transfers(counted: dict[str, float]) -> dict[str, float]:
    """Return what KV took its way, and how fast: from its first layer on, and after the prompt was computed."""
    seconds, after_s = counted["seconds"], counted["after_prompt_s"]
    return {
        "kv_bytes": counted["bytes"],
        "kv_transfers": counted["transfers"],
        "kv_bytes_per_s": counted["bytes"] / seconds if seconds else 0.0,
        "kv_after_prompt_ms": 1e3 * after_s / counted["transfers"] if counted["transfers"] else 0.0,
        "prompt_tokens": counted["prompt_tokens"],
        "dispatched_bytes": counted["dispatched_bytes"],
    }


def require_right(figures: Figures, device: str, num_tokens: int) -> None:
    """Raise Wrong when something was not answered, is another text, did not travel, or goes on."""
    if figures["answered"] < figures["asked"]:
        raise Wrong(f"{figures['answered']} of {figures['asked']} requests were answered")
    if figures["kv_transfers"] != figures["asked"] or figures["kv_bytes"] < num_tokens * kv_bytes_per_token():
        raise Wrong(f"{figures['kv_transfers']:g} transfers brought {figures['kv_bytes']:g} bytes of KV")
    if not figures["dispatched_bytes"]:
        raise Wrong("the prefill ranks dispatched nothing to each other")
    if figures["trained_exact"] < LEAST_EXACT * figures["trained"]:
        raise Wrong(f"{figures['trained_exact']} of {figures['trained']} trained answers are exact")
    if (median := statistics.median(figures["equal_tokens"])) < LEAST_MEDIAN_EQUAL:
        raise Wrong(f"half of the texts are the CPU's for {median:g} tokens or fewer")
    if device == "cuda" and (num := sum(" uses cuda:0 " in line for line in figures["said"])) != NUM_RANKS:
        raise Wrong(f"{num} of {NUM_RANKS} ranks say that they use the GPU")
    if figures["left"]:
        raise Wrong(f"{figures['left']} groups of processes did not end by themselves")


def kv_bytes_per_token() -> int:
    """Return what one token's KV takes in BF16."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    latent = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return int(config["num_hidden_layers"] * latent * torch.bfloat16.itemsize)


if __name__ == "__main__":
    sys.exit(main())

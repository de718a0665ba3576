"""Greedy text from a checkpoint without a server: the engine in the plainest possible loop.

It serves to check a checkpoint, to compare with other implementations, and to try an expert map. The ranks share the
prompts: each takes every `ep`-th. Each rank writes its part to a scratch folder, and the main process joins the parts.
An output ends with the config's end-of-text token, which is included, or after `max_tokens`.
"""

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from runtime.checkpoint import read_text_model, resolve
from runtime.errors import RuntimeFailure, UsageError
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import Group
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.cpu.memory import keep_freed_memory
from runtime.kv.cache import PageTable
from runtime.model.config import ModelConfig, read_model_config
from runtime.model.deepseek import PhysicalToLogical
from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from runtime.protocol.counting import round_up_to_page
from runtime.trace import join as join_traces
from runtime.trace import recording
from runtime.worker.children import Child, wait_together
from runtime.worker.cpus import thread_environment

__all__ = ["Job", "greedy", "run"]

LOOPBACK = "127.0.0.1"
MATRICES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}  # by --dtype


@dataclass(frozen=True)
class Job:
    """The options of a call. `rank` is None in the main process, which only starts ranks and joins their outputs."""

    checkpoint: str
    prompt_ids: Path
    max_tokens: int
    ep: int
    dtype: str
    expert_map: Path | None
    deterministic: bool
    overlap: str
    split: str
    nodes: int
    logits: Path | None
    trace: Path | None
    rank: int | None
    port: int | None
    scratch: Path | None

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> "Job":
        """Make a job from the command line's options, which have the same names."""
        values = {name: getattr(arguments, name) for name in cls.__dataclass_fields__}
        return cls(**values)


def run(job: Job) -> None:
    """Run the job. If `job.rank` is given, run that rank's part. Otherwise start all ranks and print their outputs.

    The outputs are printed together as JSON. Raises RuntimeFailure if the job cannot be done.
    """
    if job.rank is not None:
        _run_rank(job)
        return
    _check(job)
    with tempfile.TemporaryDirectory(prefix="tidemill-generate-") as scratch:
        if job.ep == 1:
            _run_rank(replace(job, rank=0, scratch=Path(scratch)))
        else:
            with _reserve_port() as port:
                wait_together(_start_ranks(job, scratch, port))
        outputs = _join_outputs(job, Path(scratch))
        if job.trace is not None:
            with _report_write_errors(job.trace):
                join_traces([_trace_part(Path(scratch), rank) for rank in range(job.ep)], job.trace)
    json.dump({"outputs": outputs}, sys.stdout)
    print()


def greedy(
    engine: Engine, group: Group, prompts: list[list[int]], max_tokens: int, stop_ids: set[int]
) -> list[list[int]]:
    """Continue this rank's prompts greedily and return the outputs. Each prompt has a prefill step of its own."""
    texts = [_Text(prompt, []) for prompt in prompts]
    cache = engine.new_cache(sum(round_up_to_page(len(prompt) + max_tokens) for prompt in prompts))
    for text in texts:
        cache.allocate(text.table, len(text.prompt) + max_tokens)
    for turn in _turns(group, len(texts)):
        chunks = [Chunk(text.prompt, 0, text.table) for text in texts[turn : turn + 1]]
        _grow(texts[turn : turn + 1], engine.step(chunks, [], cache))
    while group.any(bool(running := [text for text in texts if text.goes_on(max_tokens, stop_ids)])):
        _grow(running, engine.step([], [text.last_token() for text in running], cache))
    return [text.output for text in texts]


@dataclass
class _Text:
    """A prompt and its output so far."""

    prompt: list[int]
    output: list[int]
    table: PageTable = field(default_factory=list)

    def last_token(self) -> Chunk:
        return Chunk(self.output[-1:], len(self.prompt) + len(self.output) - 1, self.table)

    def goes_on(self, max_tokens: int, stop_ids: set[int]) -> bool:
        return len(self.output) < max_tokens and self.output[-1] not in stop_ids


def _grow(texts: list[_Text], logits: Tensor) -> None:
    for text, token_id in zip(texts, logits.argmax(-1).tolist(), strict=True):
        text.output.append(token_id)


def _turns(group: Group, num_own: int) -> Iterator[int]:
    """Yield 0, 1, ... as long as any rank has a prompt of that number, because every prefill step is a collective."""
    turn = 0
    while group.any(turn < num_own):
        yield turn
        turn += 1


def _check(job: Job) -> None:
    """Raises UsageError if the call is wrong, before any process starts."""
    config = read_model_config(resolve(job.checkpoint))
    if job.max_tokens < 1 or job.ep < 1:
        raise UsageError("--max-tokens and --ep must be at least 1")
    for flag, path in (("--logits", job.logits), ("--trace", job.trace)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{flag} {path}: there is no such folder to write it to")
        if path is not None and path.is_dir():
            raise UsageError(f"{flag} {path} is a folder, a file is needed")
    if job.nodes < 1 or job.ep % job.nodes:
        raise UsageError(f"--nodes ({job.nodes}) must divide --ep ({job.ep})")
    prompts = _read_prompts(job.prompt_ids)
    for number, prompt in enumerate(prompts):
        if not prompt or not all(type(token) is int and 0 <= token < config.vocab_size for token in prompt):
            raise UsageError(
                f"prompt {number} of {job.prompt_ids} must hold token ids from 0 to {config.vocab_size - 1}"
            )
        if len(prompt) + job.max_tokens > config.max_position_embeddings:
            raise UsageError(
                f"prompt {number} has {len(prompt)} tokens; with {job.max_tokens} more it passes the model's"
                f" {config.max_position_embeddings} positions"
            )
    _expert_map(job, config)


def _read_prompts(path: Path) -> list[Any]:
    try:
        prompts = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(prompts, list) or not all(isinstance(prompt, list) for prompt in prompts):
        raise UsageError(f"{path} must hold a list of lists of token ids")
    return prompts


def _expert_map(job: Job, config: ModelConfig) -> PhysicalToLogical:
    if job.expert_map is None:
        expert_map = [list(range(config.n_routed_experts))] * config.num_moe_layers
    else:
        expert_map = _read_prompts(job.expert_map)
    every_expert = set(range(config.n_routed_experts))
    holds_ids = all(type(expert) is int for layer in expert_map for expert in layer)
    num_slots = set(map(len, expert_map))
    is_whole = holds_ids and len(num_slots) == 1 and all(set(layer) == every_expert for layer in expert_map)
    if not is_whole or len(expert_map) != config.num_moe_layers:
        shape = f"{config.num_moe_layers} equal layers with a slot for each of {config.n_routed_experts} experts"
        raise UsageError(f"the expert map needs {shape}")
    if any(len(layer) % job.ep for layer in expert_map):
        raise UsageError(f"--ep ({job.ep}) must divide the {len(expert_map[0])} slots of a layer")
    return expert_map


@contextmanager
def _reserve_port() -> Iterator[int]:
    """Yield a port that rank 0 can listen on. Meanwhile the kernel gives the port to no other process.

    The port is bound, but nothing listens on it. Another socket may bind it only by number and with SO_REUSEADDR.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


def _start_ranks(job: Job, scratch: str, port: int) -> list[Child]:
    flags = ["generate", job.checkpoint, "--prompt-ids", str(job.prompt_ids), "--max-tokens", str(job.max_tokens)]
    flags += ["--ep", str(job.ep), "--dtype", job.dtype]
    flags += ["--scratch", scratch, "--port", str(port)]
    if job.expert_map is not None:
        flags += ["--expert-map", str(job.expert_map)]
    if job.deterministic:
        flags += ["--deterministic"]
    flags += ["--overlap", job.overlap, "--split", job.split, "--nodes", str(job.nodes)]
    if job.logits is not None:
        flags += ["--logits", str(job.logits)]
    if job.trace is not None:
        flags += ["--trace", str(job.trace)]
    threads = thread_environment(job.ep)
    return [Child(f"rank {rank}", [*flags, "--rank", str(rank)], threads) for rank in range(job.ep)]


def _run_rank(job: Job) -> None:
    """Load, join the group, compute this rank's share, and write it to the scratch folder."""
    assert job.rank is not None
    assert job.scratch is not None
    keep_freed_memory()  # before there is any tensor
    folder = resolve(job.checkpoint)
    group = new_group(job.rank, job.ep)
    with Progress(disable=job.rank != 0 or not sys.stderr.isatty(), transient=True) as bars:
        engine = Engine(_engine_config(job, folder), group, _loading_bar(bars))
    group.join(MeetingPoint(LOOPBACK, job.port or 0, job.rank == 0, LOOPBACK))
    share = _read_prompts(job.prompt_ids)[job.rank :: job.ep]
    with recording(None if job.trace is None else _trace_part(job.scratch, job.rank), job.rank):
        outputs = greedy(engine, group, share, job.max_tokens, _stop_ids(folder))
    (job.scratch / f"{job.rank}.json").write_text(json.dumps(outputs))
    if job.logits is not None:
        logits = [engine.prompt_logits(share[turn : turn + 1]) for turn in _turns(group, len(share))]
        named: dict[str, Any] = {str(turn): part[0].numpy() for turn, part in enumerate(logits) if part}
        np.savez(job.scratch / f"{job.rank}.npz", **named)
    group.any(False)  # no rank ends while another one computes


def _engine_config(job: Job, folder: Path) -> EngineConfig:
    nodes = [str(rank * job.nodes // job.ep) for rank in range(job.ep)] if job.split == "local_first" else None
    return EngineConfig(
        checkpoint=folder,
        expert_map=_expert_map(job, read_model_config(folder)),
        dtype=MATRICES[job.dtype],
        deterministic=job.deterministic,
        overlap=job.overlap,
        nodes=nodes,
    )


def _join_outputs(job: Job, scratch: Path) -> list[list[int]]:
    """Return the ranks' outputs in the order of the prompts. If asked for, also write the file of logits."""
    shares = [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(job.ep)]
    total = sum(map(len, shares))
    if job.logits is not None:
        parts = [np.load(scratch / f"{rank}.npz", allow_pickle=False) for rank in range(job.ep)]
        # an open file, because numpy would add a suffix to a name
        with _report_write_errors(job.logits), job.logits.open("wb") as file:
            np.savez(file, **{str(n): parts[n % job.ep][str(n // job.ep)] for n in range(total)})
    return [shares[n % job.ep][n // job.ep] for n in range(total)]


@contextmanager
def _report_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in this context, such as a full disk, into a RuntimeFailure that names `path`."""
    try:
        yield
    except OSError as error:
        raise RuntimeFailure(f"cannot write {path}: {error.strerror}") from None


def _trace_part(scratch: Path, rank: int) -> Path:
    return scratch / f"{rank}.trace.json"


def _stop_ids(folder: Path) -> set[int]:
    eos = read_text_model(folder).config.get("eos_token_id")
    return set(eos) if isinstance(eos, list) else set() if eos is None else {eos}


def _loading_bar(bars: Progress) -> Callable[[int, int], None]:
    task = bars.add_task("loading tensors")
    return lambda done, total: bars.update(task, completed=done, total=total)

"""Layers of DeepSeek-V3's width on 2 and 4 ranks that share a GPU, against the same layers on one rank.

    model       1 dense and 7 MoE layers of V3's sizes, but 32 experts and 8 copies; FP8, drawn alike on every rank
    prompts     a dual-batch step over `AllToAllDispatcher`
    decode      five-stage steps over `MaskedDispatcher`, greedy tokens fed back: computed as they come, then replayed.
                The ranks' numbers of requests differ and fall as requests end; one rank never has any
    one rank    computes each rank's steps alone, with all experts at home

A replayed step computes the same as the step that it recorded: its bits must be equal. So must those of a unit and of
one rank, where a row's result in the experts' matmuls does not depend on the rows beside it: everything else computes
the same rows of the same rank, and sums add a token's choices in their order. DeepGEMM adds along the channels in one
order whatever its tiles are (deepseek-ai/DeepGEMM 54e22612 csrc/jit_kernels/heuristics/sm90.hpp: no candidate splits
them), but that is not documented: so one rank measures it first, and where it is not so, logits must be close.

One rank that fails leaves the units their own comparison, of replayed with computed steps.

It tries the order of exchanges, layouts and captures, not links: times here say nothing of a unit's.
"""

import argparse
import json
import sys
import tempfile
import time
import zlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from runtime.expert_parallel import factory
from runtime.expert_parallel.dispatcher import ContiguousRows, MaskedRows
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.kernels.backend import Backend, choose_backend
from runtime.kernels.device import CudaRecorder
from runtime.kernels.fp8 import E4M3, Quantised
from runtime.kv.cache import LatentCache
from runtime.model import deepseek
from runtime.model.captured_steps import CapturedSteps, captured_sizes
from runtime.model.config import read_model_config
from runtime.model.deepseek import DeepseekV3
from runtime.model.forward_batch import Chunk
from runtime.model.moe import MixtureOfExperts
from tests.gpu.quarter_hour import one_gpu
from tests.runtime.closeness import error_in_norm
from tests.runtime.random_checkpoints import FP8, V3
from tests.runtime.recorders import Recorder

SHORT = {"max_position_embeddings": 512, "quantization_config": FP8}
SIZES = {"hidden_size": 7168, "intermediate_size": 18_432, "moe_intermediate_size": 2048, "vocab_size": 16_384}
HEADS = {"num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512}
HEADS |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
EXPERTS = {"num_hidden_layers": 8, "n_routed_experts": 32, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4}
WIDE = V3 | SHORT | SIZES | HEADS | EXPERTS
SMALL = V3 | SHORT  # for a CPU
COPIES = 8  # slots beyond one for each expert
PROMPTS = ((40, 63, 64, 30, 50), (90, 20, 100), (31,) * 8, ())  # lengths, by rank
STEPS = {"cuda": 24, "cpu": 8}
MAX_REQUESTS, MAX_TOKENS = 8, 192
SPREAD = 64.0  # of codes around 0; the largest is 448
CLOSE = 0.02  # assumed: a part of the logits by which BF16 may differ after these layers
SECONDS = {1: 80, 2: 55, 4: 55}  # with kernels that were compiled ahead
SAID = "[0-9].json"  # what each rank says
DECODE_SECONDS = 8  # for the steps of one rank: what is over then is enough


def main(arguments: argparse.Namespace) -> int:
    """Run one rank, then units, and keep what they say, also of those that do not come to their end."""
    figures, wrong = one_gpu.Figures(arguments.output), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(WIDE if arguments.device == "cuda" else SMALL))
        for size in (1, *arguments.ranks):
            try:
                found = one_gpu.run_ranks(__spec__.name, size, folder, arguments.device, SECONDS[size])
            except one_gpu.RanksFailed as failed:
                found = [json.loads(path.read_text()) for path in sorted(folder.glob(SAID))]
                wrong.append(f"EP{size}: {failed}")
            for path in folder.glob(SAID):
                path.unlink()
            figures.add(**{f"EP{size}": found})
            wrong += [f"EP{size}: {what}" for each in found for what in each["wrong"]]
    print("\n".join(wrong) if wrong else "replayed and computed steps, of units and of one rank, say the same")
    return int(bool(wrong))


def rank(arguments: argparse.Namespace) -> None:
    """Compute as one rank of a unit, or, alone, as each of the ranks of the largest."""
    device, began = one_gpu.device(arguments), time.monotonic()
    with ExitStack() as patches, torch.inference_mode():
        if device.type == "cpu":  # its unit takes a GPU's forms of dispatch
            patches.enter_context(patch.object(deepseek, "new_dispatcher", factory._choose_device_form))
        wide = WideRank(arguments, device)
        found: dict[str, Any] = {"wrong": wide.wrong, "built_s": round(time.monotonic() - began, 1)}
        wide.say(f"built after {found['built_s']} s")
        if arguments.size == 1:
            found["rows_alone"] = wide.rows_are_alone()
            (arguments.folder / "rows_alone").write_text(json.dumps(found["rows_alone"]))
        found |= wide.capture()
        for share in range(len(PROMPTS)) if arguments.size == 1 else [arguments.rank]:
            found[f"share {share}"] = wide.follow(share, arguments.folder)
            found["seconds"] = round(time.monotonic() - began, 1)
            if device.type == "cuda":
                found["peak_gb"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 1)
            (arguments.folder / f"{arguments.rank}.json").write_text(json.dumps(found))
    wide.group.any(False)  # nobody leaves while a peer still exchanges


class WideRank:
    """One rank: a model with weights that do not depend on the unit, a cache, and what it finds wrong."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.device, self.wrong = device, []
        self.config = read_model_config(arguments.folder)
        slots = range(self.config.n_routed_experts + COPIES)
        self.maps = [
            [(slot + layer) % self.config.n_routed_experts for slot in slots]
            for layer in range(self.config.num_moe_layers)
        ]
        self.group = new_group(arguments.rank, arguments.size, range(arguments.size), device)
        self.backend = _backend(device)
        self.model = DeepseekV3(self.config, self.maps, self.group, self.backend, OVERLAPS["dual_batch"])
        self._fill()
        self.backend.ops.prepare()
        kv = self.config.num_hidden_layers, self.config.latent_dim, (MAX_REQUESTS + 1) * MAX_TOKENS
        self.cache = LatentCache(*kv, torch.bfloat16, device, self.backend.ops.link)
        one_gpu.join(self.group, arguments.port)
        self._captured: CapturedSteps | None = None

    def say(self, what: str) -> None:
        """Print what the unit is at, once for all of its ranks."""
        if self.group.rank == 0:
            print(f"EP{self.group.size}: {what}", flush=True)

    def capture(self) -> dict[str, float]:
        """Record steps before requests come, since what is recorded writes to the first page."""
        self._use("five_stage", MAX_REQUESTS)
        began, before = time.monotonic(), one_gpu.reserved_gb(self.device)
        recorder = CudaRecorder(self.device) if self.device.type == "cuda" else Recorder()
        try:
            self._captured = CapturedSteps(self.model, self.cache, recorder, MAX_REQUESTS, MAX_TOKENS)
        except RuntimeError as error:  # torch's, as `Engine` takes it
            self.wrong.append(f"rank {self.group.rank}: steps cannot be captured: {str(error).splitlines()[0]}")
        one_gpu.finish(self.device)
        seconds, held = time.monotonic() - began, one_gpu.reserved_gb(self.device) - before
        self.say(f"steps of {len(captured_sizes(MAX_REQUESTS))} sizes recorded in {seconds:.1f} s, {held:.2f} GB")
        return {"capture_s": round(seconds, 2), "recordings_gb": round(held, 3)}

    def follow(self, share: int, folder: Path) -> dict[str, Any]:
        """Take the steps of one rank's requests; compare them with those of one rank, or keep them as such."""
        requests = Requests(share, self.cache, self.config.vocab_size)
        prompts = self.take_prompts(requests)
        first = prompts.argmax(-1).tolist()
        eager_s, eager = self._decoded(requests, first, self._computed)
        found = {"computed_ms": median_ms(eager_s), "steps": len(eager)}
        self.say(f"share {share}: {len(eager)} steps computed, {found['computed_ms']} ms each")
        if self._captured is not None:
            found |= self._replayed(requests, first, eager)
            self.say(f"share {share}: {found['replayed']} steps replayed, {found['replayed_ms']} ms each")
        requests.free()
        reference, steps = folder / f"share-{share}.npz", {str(number): logits for number, logits in enumerate(eager)}
        if self.group.size == 1:
            np.savez(reference, prompts=prompts.numpy(), **{name: logits.numpy() for name, logits in steps.items()})
            return found
        if not reference.exists():
            return found | {"against one rank": "it did not come that far"}
        is_alone = json.loads((folder / "rows_alone").read_text())
        with np.load(reference, allow_pickle=False) as expected:
            found["against one rank"] = {
                "prompts": self._compared("prompts", {"prompts": prompts}, expected, is_alone),
                "decode": self._compared("decode", steps, expected, is_alone),
            }
        return found

    def take_prompts(self, requests: "Requests") -> Tensor:
        """Take the requests' prompts in one step, and return their logits on the host."""
        self._use("dual_batch", None)
        logits = self.model.next_logits(requests.prompts(), [], self.cache).cpu()
        self._use("five_stage", MAX_REQUESTS)
        return logits

    def replayed(self, decoding: list[Chunk]) -> Tensor:
        """Replay a step, and return its logits in memory that the next one overwrites."""
        return self._captured.next_logits(decoding)

    def holds(self, moe_layer: int, slot: int, expert: int) -> bool:
        """Return whether a slot of this rank holds the expert as it is drawn."""
        layer = self.model.model.layers[moe_layer + self.config.first_k_dense_replace]
        for name, values in layer.mlp.experts.named_parameters():
            whole = f"model.layers.{layer.index}.mlp.experts.{name}"
            drawn = torch.empty_like(values.data[slot])
            _draw(drawn, whole, self._seeded(f"{whole} {expert}"))
            if not torch.equal(drawn.view(torch.uint8), values.data[slot].view(torch.uint8)):
                return False
        return True

    def rows_are_alone(self) -> bool:
        """Return whether the experts' matmuls give a row the same bits whatever rows are beside it."""
        experts = next(
            layer.mlp.experts for layer in self.model.model.layers if isinstance(layer.mlp, MixtureOfExperts)
        )
        slots, few, many, tile = len(experts.gate_up), 5, 60, self.backend.ops.row_alignment
        drawn = torch.randn(many, self.config.hidden_size, device=self.device, generator=self._seeded("rows"))
        x = self.backend.ops.quantise_rows(drawn.bfloat16(), self.config.power_of_two_scales)
        x = Quantised(x.codes, x.scales.contiguous())  # as of rows that travelled
        found = []
        for length in (few, many):
            counts = [length, *[0] * (slots - 1)]
            counts_M = torch.tensor(counts, device=self.device)
            rows = Quantised(x.codes[:length], x.scales[:length])
            found.append(experts(ContiguousRows(rows, counts_M, counts))[:few])
            whole = -(-length // tile) * tile
            for room, expected_rows in ((whole, 1), (whole + tile, length)):
                wide = Quantised(_with_room(rows.codes, slots, room), _with_room(rows.scales, slots, room))
                found.append(experts(MaskedRows(wide, counts_M, expected_rows=expected_rows))[0, :few])
        return all(torch.equal(found[0], other) for other in found)

    def _decoded(self, requests: "Requests", first: list[int], step: Any) -> tuple[list[float], list[Tensor]]:
        """Return how long each step took, and its logits, until all requests of the unit would have ended."""
        texts, found, seconds = [[token] for token in first], [], []
        deadline = time.monotonic() + DECODE_SECONDS
        for number in range(STEPS[self.device.type]):
            if self.group.any(time.monotonic() > deadline):
                break
            running = requests.running(number, STEPS[self.device.type])
            began = time.monotonic()
            logits = step(requests.chunks(running, texts)).to("cpu", copy=True)  # the next replay overwrites them
            seconds.append(time.monotonic() - began)
            for request, token in zip(running, logits.argmax(-1).tolist(), strict=True):
                texts[request].append(token)
            found.append(logits)
        return seconds, found

    def _computed(self, decoding: list[Chunk]) -> Tensor:
        """Compute a step as a recording would, filled up with copies of its requests, and drop theirs."""
        size = min(size for size in captured_sizes(MAX_REQUESTS) if size >= len(decoding))
        filled = [decoding[number % len(decoding)] for number in range(size)]
        return self.model.next_logits([], filled, self.cache)[: len(decoding)]

    def _replayed(self, requests: "Requests", first: list[int], eager: list[Tensor]) -> dict[str, Any]:
        """Take the same steps by their recordings: the cache holds the prompts, and what follows is written anew."""
        seconds, found = self._decoded(requests, first, self.replayed)
        unlike = [number for number, pair in enumerate(zip(eager, found, strict=False)) if not torch.equal(*pair)]
        if unlike:
            wanted, logits = eager[unlike[0]], found[unlike[0]]
            rows = (wanted != logits).any(-1).nonzero().flatten().tolist()
            self.wrong.append(
                f"rank {self.group.rank}: of {len(found)} replayed steps {len(unlike)} differ: {unlike}; in the first,"
                f" requests {rows} by {error_in_norm(logits, wanted):.2g}"
            )
        return {"replayed_ms": median_ms(seconds), "replayed": len(found), "unlike": len(unlike)}

    def _compared(self, what: str, found: dict[str, Tensor], expected: Any, is_alone: bool) -> dict[str, Any]:
        """Compare logits with one rank's up to the first step whose tokens differ: later ones answer other texts."""
        unequal, most, tokens, seen = 0, 0.0, 0, 0
        for name in (name for name in found if name in expected and not tokens):
            logits, wanted, seen = found[name], torch.from_numpy(expected[name]), seen + 1
            if not torch.equal(logits, wanted):
                unequal, most = unequal + 1, max(most, error_in_norm(logits, wanted))
                tokens += int((logits.argmax(-1) != wanted.argmax(-1)).sum())
        if unequal and (is_alone or not most < CLOSE):
            self.wrong.append(f"rank {self.group.rank}: {what}: {unequal} of {seen} steps differ, by up to {most:.2g}")
        return {"steps": seen, "unequal": unequal, "off_by": most, "other_tokens": tokens}

    def _use(self, overlap: str, max_step_tokens: int | None) -> None:
        """Let the model step as a unit of this overlap and these limits does."""
        self.model.overlap = OVERLAPS[overlap]
        self.model.dispatcher = self.model._dispatcher(self.group, max_step_tokens)
        for module in self.model.modules():
            if isinstance(module, MixtureOfExperts):
                module.dispatcher = self.model.dispatcher

    def _fill(self) -> None:
        """Draw each tensor by its name, and each slot's by its expert, so that no value depends on the unit."""
        rank, size = self.group.rank, self.group.size
        for name, values in self.model.named_parameters():
            if ".experts." not in name:
                _draw(values.data, name, self._seeded(name))
                continue
            layer = int(name.split(".")[2]) - self.config.first_k_dense_replace
            here = self.maps[layer][rank * len(values) : (rank + 1) * len(values)]
            assert len(here) * size == len(self.maps[layer])
            for slot, expert in zip(values.data, here, strict=True):
                _draw(slot, name, self._seeded(f"{name} {expert}"))

    def _seeded(self, name: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))


class Requests:
    """The requests of one rank: their prompts, their pages, and when each ends."""

    def __init__(self, share: int, cache: LatentCache, vocab_size: int) -> None:
        self.share, self._cache = share, cache
        drawn = np.random.default_rng(share)
        self._prompts = [drawn.integers(vocab_size, size=length).tolist() for length in PROMPTS[share]]
        self._tables: list[list[int]] = [[] for _ in self._prompts]
        for table in self._tables:
            cache.allocate(table, MAX_TOKENS)

    def prompts(self) -> list[Chunk]:
        """Return them whole."""
        return [Chunk(prompt, 0, table) for prompt, table in zip(self._prompts, self._tables, strict=True)]

    def running(self, step: int, steps: int) -> list[int]:
        """Return who takes this step: the first rank's end one by one, the second's all at once, the others' never."""
        number = len(self._prompts)
        ends = {0: [steps * (request + 1) // number for request in range(number)], 1: [steps * 2 // 5] * number}
        return [request for request in range(number) if step < ends.get(self.share, [steps] * number)[request]]

    def chunks(self, running: list[int], texts: list[list[int]]) -> list[Chunk]:
        """Return their last tokens."""
        ends = [len(self._prompts[n]) + len(texts[n]) - 1 for n in running]
        return [Chunk(texts[n][-1:], end, self._tables[n]) for n, end in zip(running, ends, strict=True)]

    def free(self) -> None:
        """Give the pages back."""
        for table in self._tables:
            self._cache.free(table)


def _backend(device: torch.device) -> Backend:
    """Return what an engine would choose, without DeepEP: rows are to travel over NCCL."""
    backend = choose_backend(device, E4M3, deterministic=device.type == "cpu")
    if hasattr(backend.ops, "packages"):
        backend.ops.packages = replace(backend.ops.packages, deep_ep=None)
    return backend


def _draw(values: Tensor, name: str, generator: torch.Generator) -> None:
    """Draw values so that a matrix keeps the size of what it multiplies."""
    if "scale" in name:
        values.copy_(0.75 + 0.5 * torch.rand(values.shape, device=values.device, generator=generator))
        values.div_(SPREAD * (128 * values.shape[-1]) ** 0.5)
        return
    drawn = torch.randn(values.shape, device=values.device, generator=generator)
    if values.dtype == E4M3:
        values.copy_(drawn.mul_(SPREAD).clamp_(-448, 448))
    elif name.endswith("norm.weight"):
        values.copy_(1 + 0.1 * drawn)
    elif name.endswith("bias"):
        values.copy_(0.1 * drawn)
    else:
        values.copy_(drawn if "embed" in name else drawn / values.shape[-1] ** 0.5)


def _with_room(rows: Tensor, slots: int, room: int) -> Tensor:
    """Return [slots, room, ...] that begins with `rows`; the others are 0."""
    wide = torch.zeros(slots, room, rows.shape[1], dtype=torch.float32, device=rows.device).to(rows.dtype)
    wide[0, : len(rows)] = rows
    return wide


def median_ms(seconds: list[float]) -> float:
    """Return the median of the times, in milliseconds; 0 if there are none."""
    return round(float(np.median(seconds)) * 1e3, 2) if seconds else 0.0


if __name__ == "__main__":
    sys.exit(one_gpu.part(main, rank, __doc__))

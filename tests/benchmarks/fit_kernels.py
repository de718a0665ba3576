"""Fits the constants of `planner/estimate/throughput/kernels.json` to measured tables; run by hand.

    pip download --no-deps aiconfigurator-core==0.12.0      # 82 MB, Apache-2.0, (c) NVIDIA
    python -m tests.benchmarks.fit_kernels WHEEL            # needs pyarrow besides

Each family of operators is fitted by itself, with the planner's own functions (`operations.py`), so that the sum of
squared logarithms of predicted over measured is least. Figures of H800 links and of FlashMLA are published as a few
numbers, which stand here. The tables are read and not kept: what is written has constants, residuals and provenance.
"""

import argparse
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from io import BytesIO
from math import sqrt
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy as np

from planner.estimate.throughput import operations as ops
from planner.estimate.throughput.dimensions import Bytes
from planner.estimate.throughput.intervals import SCALED_WIDTH
from planner.estimate.throughput.kernels import Kernels
from planner.estimate.throughput.machine import Machine, machine_with_kernels
from planner.estimate.throughput.work import work_of
from planner.facts.catalog import GPUS
from planner.families import MODELS

OUTPUT = Path(__file__).parents[2] / "planner" / "estimate" / "throughput" / "kernels.json"
TABLES = "aiconfigurator_core/systems/data"
SYSTEMS = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
}
HOPPER = ("h100", "h200")  # whose wide-EP tables have core attention in BF16; on Blackwell tokens have it in FP8

DISPATCH, COMBINE, EXPERTS_PER_TOKEN = 7392, 14336, 8  # bytes of a token; DeepSeek-V3
SMS = 24

# github.com/deepseek-ai/DeepEP 0297fc80 docs/legacy.md, on H800: EP size -> us of 128 tokens, dispatch and combine
H800_LOW_LATENCY = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
# and GB/s of 4,096 tokens, those for the own node counted; normal dispatch and combine
H800_NORMAL_NVLINK = (153, 158)
H800_NORMAL_NIC = {32: (58, 57), 64: (51, 50)}
FLASH_MLA_TFLOPS, FLASH_MLA_GB_PER_S = 660, 3000  # github.com/deepseek-ai/FlashMLA 066b5ba6 README.md, on H800

FP8_MLA_H20 = 1.7  # github.com/lm-sys/lm-sys.github.io 2896b379 blog/2025-09-26-sglang-ant-group.md, FP8 MLA
FLASH_MLA_H20_TFLOPS = 128  # github.com/deepseek-ai/FlashMLA issue 30: 120 to 130, batch 128 over 8,192 tokens
MLA_MI300X_TFLOPS = 367  # github.com/ROCm/aiter pull 3188: the most of 25 sizes, KV in FP8, 64 heads
MATMULS_MI300X, MATMULS_H100 = 0.45, 0.93  # of the nominal rate, the most that is reached: arXiv 2510.27583

V3 = work_of(MODELS["deepseek-v3"], "fp8", "fp8")
MOE, DENSE = (next(each for each in V3.layers if bool(each.expert) is wanted) for wanted in (True, False))
LINEAR = next(
    each.attention for each in work_of(MODELS["qwen3.5-397b-a17b"], "bf16", "bf16").layers if each.attention.state_bytes
)
SPARSE = next(iter(work_of(MODELS["deepseek-v3.2"], "fp8", "bf16").layers)).attention
COMPRESSED = {  # by the tokens of an entry
    each.attention.tokens_per_entry: each.attention for each in work_of(MODELS["deepseek-v4-pro"], "fp8", "fp8").layers
}
STREAMS = work_of(MODELS["deepseek-v4-pro"], "fp8", "fp8").stream_bytes
IN_FP8 = replace(MOE.attention, fp8_core=frozenset({"tokens"}))

Row = dict[str, Any]
Point = tuple[Callable[[Machine], float], float]  # what is predicted, and seconds that were measured
GUESS = {
    "share": 0.6,
    "us": 20.0,
}


class Tables:
    """The operator tables of one kind of GPU."""

    def __init__(self, wheel: zipfile.ZipFile, gpu: str) -> None:
        self.wheel, self.gpu = wheel, gpu

    def rows(self, path: str) -> list[Row]:
        """Return the rows of a table; none where the wheel has no such table."""
        import pyarrow.parquet as pq  # only who fits needs it

        name = f"{TABLES}/{SYSTEMS[self.gpu]}/{path}"
        if name not in self.wheel.namelist():
            return []
        return pq.read_table(BytesIO(self.wheel.read(name))).to_pylist()


def families(tables: Tables) -> dict[str, tuple[list[str], list[Point]]]:
    """Return each family's constants and points."""
    found = {
        "routed experts, decode": (
            ["expert_fixed_us", "expert_weight_share", "expert_matmul_share"],
            _experts(tables),
        ),
        "routed experts, prefill": (
            ["prompt_expert_fixed_us", "prompt_matmul_share", "copy_share"],
            _prompt_experts(tables),
        ),
        "shared expert": (["ffn_fixed_us", "ffn_weight_share", "ffn_matmul_share"], _shared(tables)),
        "attention, decode": (
            [
                *("attention_fixed_us", "attention_weight_share", "projection_share"),
                *(["core_share"] if tables.gpu in HOPPER else []),
            ],
            _attention(tables),
        ),
        "attention, prefill": (
            ["prompt_floor_us", "prompt_request_us", "prompt_projection_share", "prompt_core_share"],
            _prompt_attention(tables),
        ),
        "sparse attention, prefill": (["sparse_core_share", "index_share", "absorbed_share"], _sparse_prompts(tables)),
        "compressed attention, prefill": (["compressed_core_share", "compressed_share"], _compressed_prompts(tables)),
        "residual streams": (["stream_fixed_us", "stream_share"], _streams(tables)),
        "linear attention, decode": (["state_share"], _states(tables)),
        "linear attention, prefill": (["scan_share"], _scans(tables)),
        "low latency, one node": (
            [f"{each}_nvlink_{kind}" for each in ("dispatch", "combine") for kind in ("fixed_us", "share")],
            _low_latency(tables, "0.5.12", between_nodes=False),
        ),
        "normal, one node": (["normal_nvlink_share"], _normal(tables, "0.5.12", 1)),
    }
    if tables.gpu == "h100":  # the tables of other GPUs over several nodes are its, byte for byte
        found["low latency, several nodes"] = (
            [f"{each}_{kind}" for each in ("dispatch", "combine") for kind in ("fixed_us", "doubling_us", "nic_share")],
            _low_latency(tables, "0.5.6.post2", between_nodes=True),
        )
        found["normal, 4 nodes"] = (["normal_nic_share"], _normal(tables, "0.5.6.post2", 4))
    return {name: family for name, family in found.items() if family[1]}


def _experts(tables: Tables) -> list[Point]:
    rows = tables.rows("moe/sglang/0.5.10/wideep_generation_moe_perf.parquet")
    points = []
    for row in _uniform(rows):
        slots, pairs = 256 / row["moe_ep_size"], row["num_tokens"] * EXPERTS_PER_TOKEN / row["moe_ep_size"]
        busy = min(slots, pairs)
        points.append((lambda m, s=busy, p=pairs: ops.routed_experts_time(m, MOE.expert, s, p), row["latency"] / 1e3))
    return points


def _prompt_experts(tables: Tables) -> list[Point]:
    rows = tables.rows("moe/sglang/0.5.10/wideep_context_moe_perf.parquet")
    points = []
    for row in _uniform(rows):
        tokens, slots = row["num_tokens"], 256 / row["moe_ep_size"]
        pairs = tokens * EXPERTS_PER_TOKEN / row["moe_ep_size"]
        if tokens * EXPERTS_PER_TOKEN / 256 < 256:  # fewer rows an expert are the host's launches
            continue

        def predicted(m: Machine, s: float = slots, p: float = pairs, t: float = tokens) -> float:
            copied = ops.expert_copy_bytes(COMBINE, DISPATCH, 2048, t, p)  # all the group's tokens are scanned here
            return ops.prompt_experts_time(m, MOE.expert, s, p) + ops.copy_time(m, copied)

        points.append((predicted, row["latency"] / 1e3))
    return points


def _shared(tables: Tables) -> list[Point]:
    rows = tables.rows("mlp/sglang/0.5.6.post2/wideep_generation_mlp_perf.parquet")
    rows += tables.rows("mlp/sglang/0.5.6.post2/wideep_context_mlp_perf.parquet")
    return [(lambda m, t=row["num_token"]: ops.dense_ffn_time(m, MOE.shared, t), row["avg_ms"] / 1e3) for row in rows]


def _attention(tables: Tables) -> list[Point]:
    rows = tables.rows("mla/sglang/0.5.10/wideep_generation_mla_perf.parquet")
    work = MOE.attention if tables.gpu in HOPPER else IN_FP8

    def predicted(m: Machine, batch: int, kv: int) -> float:
        return ops.attention_input_time(m, work, batch) + ops.attention_output_time(m, work, batch, kv)

    return [
        (lambda m, b=row["batch_size"], kv=row["isl"]: predicted(m, b, kv), row["latency"] / 1e3)
        for row in _core(rows, tables.gpu)
        if row["isl"] >= 256
    ]


def _prompt_attention(tables: Tables) -> list[Point]:
    rows = tables.rows("mla/sglang/0.5.10/wideep_context_mla_perf.parquet")

    def predicted(m: Machine, batch: int, length: int) -> float:
        tokens = batch * length
        work = ops.prompt_attention_input_time(m, MOE.attention, tokens)
        work += ops.prompt_attention_output_time(m, MOE.attention, tokens, length / 2, batch)
        return ops.apply_launch_floor(m.fixed(m.kernels.prompt_floor_us), work)

    return [
        (lambda m, b=row["batch_size"], s=row["isl"]: predicted(m, b, s), row["latency"] / 1e3)
        for row in _core(rows, tables.gpu)
        if row["batch_size"] * row["isl"] <= 262_144
    ]


def _sparse_prompts(tables: Tables) -> list[Point]:
    """Return whole attention layers of DeepSeek-V3.2 with all heads, whose kernels fill up none, and KV in BF16."""

    def predicted(m: Machine, batch: int, length: int) -> float:
        tokens = batch * length
        work = ops.prompt_attention_input_time(m, SPARSE, tokens)
        return work + ops.prompt_attention_output_time(m, SPARSE, tokens, length / 2, batch)

    return [
        (lambda m, b=row["batch_size"], s=row["isl"]: predicted(m, b, s), row["latency"] / 1e3)
        for row in tables.rows("sparse_attention/vllm/0.24.0/dsa_context_module_perf.parquet")
        if (row["model"], row["num_heads"], row["step"]) == ("deepseek-ai/DeepSeek-V3.2", 128, 0)
        and (row["kv_cache_dtype"], row["gemm_type"]) == ("bfloat16", "fp8_block")
        and row["isl"] >= 512
        and 8192 <= row["batch_size"] * row["isl"] <= 65_536
    ]


def _compressed_prompts(tables: Tables) -> list[Point]:
    """Return whole attention layers of DeepSeek-V4-Pro, with all heads, of both ratios."""

    def predicted(m: Machine, ratio: int, batch: int, length: int) -> float:
        tokens = batch * length
        work = ops.prompt_attention_input_time(m, COMPRESSED[ratio], tokens)
        return work + ops.prompt_attention_output_time(m, COMPRESSED[ratio], tokens, length / 2, batch)

    return [
        (lambda m, r=ratio, b=row["batch_size"], s=row["isl"]: predicted(m, r, b, s), row["latency"] / 1e3)
        for kind, ratio in (("csa", 4), ("hca", 128))
        for row in tables.rows(f"sparse_attention/vllm/0.24.0/dsv4_{kind}_context_module_perf.parquet")
        if "DeepSeek-V4-Pro" in row["model"]
        and (row["num_heads"], row["step"], row["gemm_type"]) == (128, 0, "fp8_block")
        and row["isl"] >= 512
        and 8192 <= row["batch_size"] * row["isl"] <= 65_536
    ]


def _streams(tables: Tables) -> list[Point]:
    """Return both sites of a layer of DeepSeek-V4-Pro, before and after what they enclose."""
    found: dict[int, float] = {}
    for row in tables.rows("mhc/vllm/0.24.0/mhc_module_perf.parquet"):
        if row["hidden_size"] == 7168:
            found[row["num_tokens"]] = found.get(row["num_tokens"], 0.0) + row["latency"]
    return [(lambda m, t=tokens: ops.streams_time(m, Bytes(t * STREAMS)), ms / 1e3) for tokens, ms in found.items()]


def _states(tables: Tables) -> list[Point]:
    return [
        (lambda m, b=batch: b * 2 * LINEAR.state_bytes / m.kernels.state_share / m.memory, ms / 1e3)
        for (batch, _), ms in _gated_delta(tables, "generation").items()
        if batch >= 64
    ]


def _scans(tables: Tables) -> list[Point]:
    return [
        (lambda m, t=batch * length: t * LINEAR.scan_bytes / m.kernels.scan_share / m.memory, ms / 1e3)
        for (batch, length), ms in _gated_delta(tables, "context").items()
        if batch > 1 and 16_384 <= batch * length <= 65_536  # a single prompt has too few chunks at a time
    ]


def _gated_delta(tables: Tables, phase: str) -> dict[tuple[int, int], float]:
    """Return (batch, length) -> ms of Qwen3.5-397B's linear attention without its projections: both kernels."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for row in tables.rows("linear_attention/vllm/0.24.0/gdn_perf.parquet"):
        if row["model_name"] == "Qwen/Qwen3.5-397B-A17B" and row["num_v_heads"] == 64 and row["phase"] == phase:
            found.setdefault((row["batch_size"], row["seq_len"]), {})[row["kernel_source"]] = row["latency"]
    return {key: sum(of.values()) for key, of in found.items() if len(of) == 2}


def core_attention(tables: Tables) -> dict[str, float]:
    """Return how many times core attention of 128 heads is faster in FP8 than in BF16; on Blackwell its BF16 share too.

    Of tokens it is what more context takes: batches of 128 and 256 are compared with 8,192 and 16,384 tokens of KV,
    so that all else falls out. Of prompts it is the median of those with 4,096 to 16,384 tokens; Hopper has none in
    FP8. On Blackwell the wide-EP tables do not tell tokens' core attention from what else takes time.
    """
    if tables.gpu in HOPPER:
        took, _ = _per_context(tables.rows("mla/vllm/0.24.0/mla_generation_module_perf.parquet"))
        return {"core_fp8_speedup": round(took["bfloat16"] / took["fp8"], 3), "prompt_core_fp8_speedup": 1.0}
    took, tokens = _per_context(tables.rows("mla/sglang/0.5.14/generation_mla_perf.parquet"))
    prompts = _by_precision(tables.rows("mla/sglang/0.5.14/context_mla_perf.parquet"))
    ratios = [of["bfloat16"] / of["fp8"] for (_, length, _), of in prompts.items() if 4096 <= length <= 16_384]
    rate = tokens * MOE.attention.core_flops / (took["bfloat16"] / 1e3)
    return {
        "core_share": round(rate / (GPUS[tables.gpu].bf16_tflops * 1e12), 4),
        "core_fp8_speedup": round(took["bfloat16"] / took["fp8"], 3),
        "prompt_core_fp8_speedup": round(median(ratios), 3),
    }


def _per_context(rows: list[Row]) -> tuple[dict[str, float], int]:
    """Return precision of KV -> milliseconds for so many more tokens of KV, and their number."""
    found = {
        (batch, round((isl + step) / 8192), isl + step): of for (batch, isl, step), of in _by_precision(rows).items()
    }
    took, tokens = {"bfloat16": 0.0, "fp8": 0.0}, 0
    for (batch, eights, kv), of in found.items():
        sign = {1: -1, 2: 1}.get(eights, 0) if batch in (128, 256) and kv >= 8192 else 0
        tokens += sign * batch * kv
        took = {name: took[name] + sign * of[name] for name in took} if sign else took
    return took, tokens


def _by_precision(rows: list[Row]) -> dict[tuple[int, int, int], dict[str, float]]:
    """Return (batch, prompt, step) -> precision of KV -> milliseconds, of 128 heads and matmuls in FP8 or none."""
    found: dict[tuple[int, int, int], dict[str, float]] = {}
    for row in rows:
        if row["num_heads"] == 128 and row["mla_dtype"] == "bfloat16" and row.get("gemm_type") in (None, "fp8_block"):
            key = (row["batch_size"], row["isl"], row["step"])
            found.setdefault(key, {})[row["kv_cache_dtype"]] = row["latency"]
    return found


def _low_latency(tables: Tables, version: str, *, between_nodes: bool) -> list[Point]:
    points: list[Point] = []
    for row in _deep_ep(tables.rows(f"comm/sglang/{version}/wideep_deepep_ll_perf.parquet")):
        nodes, tokens = row["node_num"], row["num_token"]
        if (nodes > 1) != between_nodes:
            continue
        points += _both(tokens, nodes, row["dispatch_avg_t_us"], row["combine_avg_t_us"])
    return points


def _both(tokens: int, nodes: int, dispatch_us: float, combine_us: float) -> list[Point]:
    """Experts are drawn for each token alike, so that the fullest GPU has what luck gives it."""
    pairs = tokens * EXPERTS_PER_TOKEN
    sent = pairs * fullest(8 * nodes, pairs) * (1 - 1 / nodes if nodes > 1 else 7 / 8)
    return [
        (lambda m: ops.low_latency_seconds(m, "dispatch", Bytes(sent * DISPATCH), nodes), dispatch_us / 1e6),
        (lambda m: ops.low_latency_seconds(m, "combine", Bytes(sent * COMBINE), nodes), combine_us / 1e6),
    ]


def fullest(num_gpus: int, pairs: float) -> float:
    """Return the fullest of `num_gpus` over the mean, where `pairs` come to each on average: Blom's formula."""
    return 1 + NormalDist().inv_cdf((num_gpus - 0.375) / (num_gpus + 0.25)) / sqrt(pairs)


def _normal(tables: Tables, version: str, nodes: int) -> list[Point]:
    """Experts of the tables are drawn over all nodes."""
    points: list[Point] = []
    for row in _deep_ep(tables.rows(f"comm/sglang/{version}/wideep_deepep_normal_perf.parquet")):
        if row["node_num"] != nodes or row["num_token"] < 1024 or row["dispatch_sms"] != SMS:
            continue
        gpus = (8 * nodes - 1) * (1 - (1 - 1 / (8 * nodes)) ** EXPERTS_PER_TOKEN)
        others = (nodes - 1) * (1 - (1 - 1 / nodes) ** EXPERTS_PER_TOKEN)
        for size, name in ((DISPATCH, "dispatch"), (COMBINE, "combine")):
            inside, between = (Bytes(row["num_token"] * each * size) for each in (gpus, others))
            points.append(
                (lambda m, i=inside, b=between: ops.normal_exchange_time(m, i, b), row[f"{name}_transmit_us"] / 1e6)
            )
    return points


def _uniform(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["distribution"] == "uniform"]


def _core(rows: list[Row], gpu: str) -> list[Row]:
    kernel = "fa3" if gpu in HOPPER else "trtllm_mla"
    return [row for row in rows if row["kernel_source"] == kernel and row["num_heads"] == 128]


def _deep_ep(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["hidden_size"] == 7168 and row["num_topk"] == 8 and row["num_experts"] == 256]


def h800_families() -> dict[str, tuple[list[str], list[Point]]]:
    """Return what was published of the H800 itself; its chips are the H100's."""
    low: list[Point] = []
    for size, (dispatch, combine) in H800_LOW_LATENCY.items():
        nodes = size // 8
        low += _both(128, nodes, dispatch, combine)
    one_node, several = low[:2], low[2:]
    nvlink = [
        (lambda m, s=size: ops.normal_exchange_time(m, Bytes(s * 7 / 8), Bytes(0)), size / (gb_per_s * 1e9))
        for size, gb_per_s in zip((1e6, 1e6), H800_NORMAL_NVLINK, strict=True)
    ]
    nic = [
        (lambda m, s=remote: ops.normal_exchange_time(m, Bytes(0), Bytes(s)), 1e6 / (gb_per_s * 1e9))
        for ep_size, both in H800_NORMAL_NIC.items()
        for gb_per_s in both
        for remote in [1e6 * (1 - 8 / ep_size)]
    ]
    names = [f"{each}_nvlink_share" for each in ("dispatch", "combine")]
    several_names = [f"{each}_{kind}" for each in ("dispatch", "combine") for kind in ("fixed_us", "doubling_us")]
    return {
        "low latency, one node": (names, one_node),
        "low latency, several nodes": (several_names, several),
        "normal, one node": (["normal_nvlink_share"], nvlink),
        "normal, several nodes": (["normal_nic_share"], nic),
    }


def fit(machine: Machine, names: Sequence[str], points: Sequence[Point]) -> tuple[dict[str, float], list[float]]:
    """Return the constants, and predicted over measured - 1 of each point: Levenberg and Marquardt, in logarithms."""
    logs = np.log([GUESS["us" if name.endswith("us") else "share"] for name in names])
    measured = np.log([seconds for _, seconds in points])

    def residuals(each: Any) -> Any:
        tried = replace(
            machine, kernels=replace(machine.kernels, **dict(zip(names, np.exp(each).tolist(), strict=True)))
        )
        return np.log([predict(tried) for predict, _ in points]) - measured

    found, damping = residuals(logs), 1e-3
    for _ in range(300):
        slopes = np.stack([(residuals(logs + step) - found) / 1e-4 for step in 1e-4 * np.eye(len(logs))], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(logs)), -slopes.T @ found)
        tried = residuals(logs + step)
        if tried @ tried < found @ found:
            logs, found, damping = logs + step, tried, damping / 3
        else:
            damping *= 5
        if damping > 1e9:
            break
    constants = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(logs), strict=True)}
    return constants, (np.exp(found) - 1).tolist()


def fitted(gpu: str, groups: dict[str, tuple[list[str], list[Point]]], base: Kernels) -> Row:
    """Return the constants and residuals of one kind of GPU."""
    machine = machine_with_kernels(GPUS[gpu], gpu, base, {})
    constants, residuals = {}, {}
    for name, (names, points) in groups.items():
        found, errors = fit(machine, names, points)
        machine = replace(machine, kernels=replace(machine.kernels, **found))  # later families build on earlier ones
        constants |= found
        size = np.abs(errors)
        residuals[name] = {
            "points": len(errors),
            "mean": round(float(size.mean()), 4),
            "p90": round(float(np.quantile(size, 0.9)), 4),
            "worst": round(float(size.max()), 4),
        }
        print(f"{gpu:6} {name:28} {len(errors):4} points, mean {size.mean():6.1%}, worst {size.max():6.1%}  {found}")
    return {"constants": constants, "residuals": residuals}


def left_out(wheel: zipfile.ZipFile, gpus: dict[str, Row]) -> Row:
    """Return how many points the range of scaled constants covers, when the tables of a point's GPU are left out.

    Constants are then those of the reference, and of the reference itself those of the kind that is nearest to it.
    """
    num_points = num_covered = 0
    for gpu in SYSTEMS:
        other = Kernels(**(gpus["h100"]["constants"] | (gpus["h200"]["constants"] if gpu == "h100" else {})))
        machine = machine_with_kernels(GPUS[gpu], gpu, other, {})
        for _, points in families(Tables(wheel, gpu)).values():
            for predict, measured in points:
                num_points += 1
                num_covered += 1 - SCALED_WIDTH <= predict(machine) / measured <= 1 + SCALED_WIDTH
    print(f"left out: {num_covered} of {num_points} points covered, {num_covered / num_points:.1%}")
    return {"width": SCALED_WIDTH, "points": num_points, "covered": num_covered}


def rows_shares(gpu: str, constants: dict[str, float]) -> dict[str, float]:
    """Return the rate at which processors handle rows: what they reach within one node, where nothing else delays."""
    nvlink, memory = GPUS[gpu].nvlink_gb_per_s, GPUS[gpu].memory_gb_per_s
    return {
        f"{each}_rows_share": float(f"{constants[f'{each}_nvlink_share'] * nvlink / memory:.4g}")
        for each in ("dispatch", "combine")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    wheel = zipfile.ZipFile(parser.parse_args().wheel)
    start = Kernels(**{each.name: 20.0 if each.name.endswith("us") else 0.6 for each in fields(Kernels)})
    core = {gpu: core_attention(Tables(wheel, gpu)) for gpu in SYSTEMS}
    flash = {
        "core_share": round(FLASH_MLA_TFLOPS / GPUS["h800"].bf16_tflops, 4),
        "core_memory_share": round(FLASH_MLA_GB_PER_S / GPUS["h800"].memory_gb_per_s, 4),
    }
    gpus = {gpu: fitted(gpu, families(Tables(wheel, gpu)), replace(start, **core[gpu])) for gpu in SYSTEMS}
    for gpu, each in gpus.items():
        each["constants"] |= rows_shares(gpu, each["constants"]) | core[gpu]
    gpus["h100"]["constants"]["core_memory_share"] = flash["core_memory_share"]
    h800 = fitted("h800", h800_families(), replace(start, **gpus["h100"]["constants"]))
    h800["constants"] |= flash
    gpus["h800"] = {"same_silicon_as": "h100"} | h800
    h20 = {
        "core_share": round(FLASH_MLA_H20_TFLOPS / GPUS["h20"].bf16_tflops, 4),
        "core_fp8_speedup": FP8_MLA_H20,
    }
    gpus["h20"] = {"constants": h20}
    gpus["mi300x"] = {
        "constants": {"core_share": round(MLA_MI300X_TFLOPS / GPUS["mi300x"].bf16_tflops, 4)},
        "matmuls": round(MATMULS_MI300X / MATMULS_H100, 4),
    }
    for gpu, like in (("mi325x", "mi300x"), ("mi355x", "mi300x")):
        gpus[gpu] = {"like": like, "constants": {}}
    document = {
        "written_by": "python -m tests.benchmarks.fit_kernels",
        "sources": {
            "h100, h200, b200, gb200, b300, gb300": "PyPI aiconfigurator-core 0.12.0, Apache-2.0, (c) NVIDIA: tables "
            "of SGLang's wide-EP operators, versions 0.5.6.post2 to 0.5.12, of DeepSeek-V3's shapes; core attention in "
            "FP8 beside BF16 of SGLang 0.5.14 and, on Hopper, vLLM 0.24.0; linear, sparse and compressed attention and "
            "residual streams of vLLM 0.24.0",
            "h800": "github.com/deepseek-ai/DeepEP 0297fc80 docs/legacy.md (links); github.com/deepseek-ai/FlashMLA "
            "066b5ba6 README.md (core attention); all else as its equal chip",
            "h20": "github.com/deepseek-ai/FlashMLA issue 30 (core attention); github.com/lm-sys/lm-sys.github.io "
            "2896b379 blog/2025-09-26-sglang-ant-group.md (its FP8); all else scaled",
            "mi300x": "github.com/ROCm/aiter pull 3188 (core attention); arXiv 2510.27583 (large matmuls reach 45 % of "
            "the nominal rate, an H100's 93 %, in FP8 and BF16); all else scaled",
            "mi325x, mi355x": "all scaled: from mi300x, whose kernels they run",
        },
        "reference": "h100",
        "left_out": left_out(wheel, gpus),
        "gpus": gpus,
    }
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

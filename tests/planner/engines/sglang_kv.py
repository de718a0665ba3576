"""The KV of one request as SGLang's own arithmetic has it: its functions, cut out of its sources and run alone.

They size the pools of a server: bytes of a token in a layer that keeps all tokens, of a token inside a sliding window,
of the state of a linear layer, and so on. What they ask a running server for is given here: attention on one GPU, no
drafts, Hopper, no pipeline, no option that changes a pool. Of the model they get the keys of its config.json.

Nothing of SGLang is imported, which would need CUDA's packages. The text of each function is parsed, the imports in it
are left out, and a name that nobody gave is an error.
"""

import __future__

import ast
import enum
import functools
from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

__all__ = ["request_bytes"]

CONFIGURATOR = "model_executor/pool_configurator.py"
MODEL_CONFIG = "configs/model_config.py"
V4_POOL = "mem_cache/deepseek_v4_memory_pool.py"
V4_PAGE = 256  # tokens: arg_groups/model_overrides/deepseek_v4.py
Cut = dict[str, Any]


@dataclass(frozen=True)
class Dtype:
    """Stands for a torch.dtype: only its size is asked for."""

    itemsize: int


BF16, FP8, FP32, UINT8 = Dtype(2), Dtype(1), Dtype(4), Dtype(1)
TORCH = SimpleNamespace(
    bfloat16=BF16, float16=Dtype(2), float32=FP32, float8_e4m3fn=FP8, uint8=UINT8, dtype=Dtype,
    _utils=SimpleNamespace(_element_size=lambda dtype: dtype.itemsize),
)  # fmt: skip
DTYPES = {"bf16": BF16, "fp8": FP8}
ALONE = SimpleNamespace(attn_tp_size=1, attn_dcp_size=1, attn_dp_size=1)


def request_bytes(sources: Path, architecture: str, config: dict[str, Any], kv: str, tokens: int) -> int:
    """Return the bytes of one request of `tokens` tokens over all layers, without rounding to pages."""
    given = SimpleNamespace(**config, architectures=[architecture])
    srt = sources / "sglang" / "srt"
    if "compress_ratios" in config:
        return _compressed(sources, given, tokens)
    if "sliding_attention" in config.get("layer_types", ()) or "hybrid_layer_pattern" in config:
        return _windowed(srt, given, DTYPES[kv], tokens)
    if "linear_num_key_heads" in config:
        full = len([each for each in config["layer_types"] if each == "full_attention"])
        return tokens * _cell(srt, given, DTYPES[kv], full) + _linear_state(srt, given)
    return tokens * _cell(srt, given, DTYPES[kv], given.num_hidden_layers)


def _cell(srt: Path, config: SimpleNamespace, dtype: Dtype, num_layers: int) -> int:
    """Bytes of a token over the layers that keep all tokens."""
    asked = _of_model(srt)
    asked |= _cut(srt / "mem_cache/kv_cache_configurator.py", ["calculate_mla_kv_cache_dim"], asked)
    asked |= _cut(srt / "mem_cache/kv_cache_configurator.py", ["_should_elide_dsa_index_k"], asked)
    asked |= _cut(srt / "mem_cache/memory_pool.py", ["get_minimax_sparse_index_dtype"], asked)
    sizing = _cut(srt / CONFIGURATOR, ["DefaultPoolConfigurator", "_get_dsa_cache_layer_ids"], asked)
    configurator = object.__new__(sizing["DefaultPoolConfigurator"])
    configurator.kv_cache_dtype_str = "auto"
    return int(configurator._compute_cell_size(_server(config, dtype), num_layers))


def _windowed(srt: Path, config: SimpleNamespace, dtype: Dtype, tokens: int) -> int:
    """Bytes where some layers keep a window of tokens only."""
    asked = _of_model(srt) | {"_dflash_draft_cell_size": lambda _: 0}
    archs = _constants(srt / MODEL_CONFIG, "SWA_SINK_ARCHS", "MIMO_V2_MODEL_ARCHS")
    asked |= _cut(srt / MODEL_CONFIG, ["get_hybrid_layer_ids"], asked | archs)
    sizing = _cut(srt / CONFIGURATOR, ["HybridSWAPoolConfigurator"], asked)
    server = _server(config, dtype)
    windowed, full = asked["get_hybrid_layer_ids"](config.architectures, config)
    server.layer_info.swa_attention_layer_ids, server.layer_info.full_attention_layer_ids = windowed, full
    sized = sizing["HybridSWAPoolConfigurator"](server)
    in_full, in_window = sized._full_cell_bytes(), sized._swa_cell_bytes()
    return int(tokens * in_full + min(tokens, config.sliding_window) * in_window)


def _linear_state(srt: Path, config: SimpleNamespace) -> int:
    """Bytes of the state that linear layers keep of a request, however long it is."""
    unset = SimpleNamespace(get=lambda: None)
    asked: Cut = {"ABC": ABC, "dataclass": dataclass, "field": field, "np": numpy, "torch": TORCH, "_is_cpu": False}
    asked |= {"envs": SimpleNamespace(SGLANG_MAMBA_CONV_DTYPE=unset, SGLANG_MAMBA_SSM_DTYPE=unset)}
    asked |= {"divide": lambda whole, parts: whole // parts, "linear_attn_tp_size": lambda: 1, "logger": getLogger()}
    state = ["Mamba2StateDType", "mamba2_state_dtype", "BaseLinearStateParams", "Mamba2StateShape", "Mamba2CacheParams"]
    asked |= _cut(srt / "configs/mamba_utils.py", state, asked)
    asked |= {"PretrainedConfig": object}
    params = _cut(srt / "configs/qwen3_next.py", ["Qwen3NextConfig"], asked)["Qwen3NextConfig"].mamba2_cache_params
    config.linear_layer_ids = [layer for layer, kind in enumerate(config.layer_types) if kind == "linear_attention"]
    return int(params.fget(config).mamba_cache_per_req)


def _compressed(sources: Path, config: SimpleNamespace, tokens: int) -> int:
    """Bytes where layers keep a window, and all tokens compressed: DeepSeek-V4, whose KV has one type only."""
    srt = sources / "sglang" / "srt"
    asked = _of_model(srt) | {"ONLINE_C128": False, "_is_npu": False, "ceil_div": lambda a, b: -(-a // b)}
    layout = _cut(
        sources / "sglang/kernels/ops/attention/dsv4/kv_layout.py",
        ["KVLayout"],
        {"enum": enum, "functools": functools, "Union": None},
    )
    asked |= layout | {"select_dsv4_kv_layout": lambda: (layout["KVLayout"].V4, None), "Optional": None}
    asked |= {"envs": SimpleNamespace(SGLANG_DSV4_COMPRESS_STATE_DTYPE=SimpleNamespace(get=lambda: "float32"))}
    pool = ["get_dsv4_indexer_bytes_per_token", "get_compress_state_ring_size", "resolve_compressed_kv_layout"]
    asked |= _cut(srt / V4_POOL, pool, asked)
    asked |= _cut(srt / CONFIGURATOR, ["_get_dsv4_compress_state_dtype_sizes"], asked)
    sized = object.__new__(_cut(srt / CONFIGURATOR, ["DSV4PoolConfigurator"], asked)["DSV4PoolConfigurator"])
    ratios = config.compress_ratios[: config.num_hidden_layers]
    counts = {ratio: ratios.count(ratio) for ratio in (4, 128)}
    sized.num_layers, sized.num_layers_total, sized._unified = counts.get, len(ratios), False
    sized.page_size, sized.c4_shrink_factor, sized.encoder_replay = V4_PAGE, 1, False
    sized.attn_head_dim, sized.indexer_head_dim = config.head_dim, config.index_head_dim
    sized.indexer_bytes_per_token = asked["get_dsv4_indexer_bytes_per_token"](config.index_head_dim, False)
    sized.ring_sizes = {ratio: asked["get_compress_state_ring_size"](ratio) for ratio in counts}
    window = min(tokens, config.sliding_window) * sized._get_paged_kv_bytes_per_token() * len(ratios)
    in_ring_4 = V4_PAGE * (sized._get_bytes_per_swa_token() - sized._get_paged_kv_bytes_per_token() * len(ratios))
    in_ring_128 = sized.ring_sizes[128] * 2 * config.head_dim * FP32.itemsize * counts[128]
    kept = sum(tokens * sized._compressed_bytes_per_full_token(ratio) * count for ratio, count in counts.items())
    return round(window + kept + in_ring_4 + in_ring_128)


def _server(config: SimpleNamespace, dtype: Dtype) -> SimpleNamespace:
    """What a pool configurator is given: the model's shapes under SGLang's names, one GPU, no drafts."""
    text = vars(config)
    head_dim = text.get("head_dim", 0)
    model = SimpleNamespace(
        hf_config=config,
        kv_lora_rank=text.get("kv_lora_rank"),
        qk_rope_head_dim=text.get("qk_rope_head_dim"),
        head_dim=head_dim, v_head_dim=text.get("v_head_dim", head_dim),
        swa_head_dim=text.get("swa_head_dim", head_dim), swa_v_head_dim=text.get("swa_v_head_dim", head_dim),
        attention_arch="MHA", quantization=None,
        get_num_kv_heads=lambda *_: config.num_key_value_heads,
        get_swa_num_kv_heads=lambda *_: text.get("swa_num_key_value_heads", config.num_key_value_heads),
    )  # fmt: skip
    never = SimpleNamespace(is_eagle=lambda: False, is_standalone=lambda: False)
    layers = SimpleNamespace(start_layer=0, end_layer=config.num_hidden_layers)
    return SimpleNamespace(
        model_config=model, kv_cache_dtype=dtype, kv_cache_dtype_str="auto", model_dtype=BF16, is_draft_worker=False,
        use_mla_backend=model.kv_lora_rank is not None, mambaish_config=None, layer_info=layers, page_size=64,
        sliding_window_size=text.get("sliding_window"), spec_algorithm=never, fused_entry_bytes=lambda _: None,
        server_args=SimpleNamespace(enable_hisparse=False),
    )  # fmt: skip


def _of_model(srt: Path) -> Cut:
    """What the configurators ask: functions of the model's config, and a server with nothing unusual."""
    off = SimpleNamespace(get=lambda: False)
    memory = SimpleNamespace(
        enable_hisparse=False, enable_unified_memory=False, enable_unified_cache_external_linker=False,
        enable_hierarchical_cache=False,
    )  # fmt: skip
    kernel = SimpleNamespace(dsa_prefill_backend=None, dsa_decode_backend=None, dsv4_attn_backend="flashmla")
    asked: Cut = {
        "torch": TORCH,
        "envs": SimpleNamespace(SGLANG_NPU_ENABLE_SPARSE_KV_OFFLOAD=off, SGLANG_OPT_MINIMAX_M3_FP8_INDEX_CACHE=off),
        "get_parallel": lambda: ALONE,
        "get_memory": lambda: memory,
        "get_model": lambda: SimpleNamespace(qsa_indexer_dtype=None),
        "get_schedule": lambda: SimpleNamespace(swa_full_tokens_ratio=0.8),
        "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
        "get_exec": lambda: SimpleNamespace(kernel=kernel),
        "get_platform": lambda: SimpleNamespace(is_sm90=True, is_blackwell=False),
        "resolving_view": lambda args: args,
        "m3_fp8_attn_gemm_enabled": lambda _: False,
        "is_float4_e2m1fn_x2": lambda _: False,
        "get_glm_dsa_layer_split_effective_num_layers": lambda _, num_layers: num_layers,
        "get_glm_dsa_cp_layer_shard_info": lambda _: (0, 1),
        "get_layer_shard_range": None,
        "parse_qsa_profile": lambda _: None,
        "QSATokenToKVPool": None,
        "resolve_qsa_indexer_dtype": None,
        "AttentionArch": SimpleNamespace(MLA="MLA"),
        "MemoryPoolConfigurator": object,
        "ceil_div": lambda a, b: -(-a // b),
        **dict.fromkeys(("_is_npu", "_is_hip", "_is_gfx95_supported"), False),
        "_is_cuda": True,
    }
    pool = _constants(srt / "mem_cache/memory_pool.py", *_DSA_CONSTANTS, of_class="DSATokenToKVPool", given=asked)
    asked["DSATokenToKVPool"] = SimpleNamespace(**pool)
    readers = [
        "_hf_arch", "_hf_attr", "is_deepseek_dsa", "get_dsa_index_head_dim", "get_dsa_index_kpool", "is_deepseek_v4",
        "dsa_layer_skips_topk", "is_minimax_sparse", "get_minimax_sparse_attention_config",
        "get_minimax_sparse_layer_ids", "get_minimax_sparse_disable_value_layer_ids",
        "uses_minimax_m3_nvfp4_native_stack",
    ]  # fmt: skip
    return asked | _cut(srt / MODEL_CONFIG, readers, asked)


_DSA_CONSTANTS = ("quant_block_size", "index_k_with_scale_buffer_dtype", "rope_storage_dtype")


class _WithoutImports(ast.NodeTransformer):
    """Names that a function imports are given to it instead."""

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _cut(path: Path, names: Iterable[str], given: Cut) -> Cut:
    """The functions and classes `names` of the file at `path`, which find in `given` what they ask for."""
    wanted = set(names)
    found = [node for node in _parsed(path).body if getattr(node, "name", None) in wanted]
    assert {node.name for node in found} == wanted, f"{path.name}: {wanted - {node.name for node in found}}"
    kept = [_WithoutImports().visit(node) for node in found]
    return _run(path, [ast.fix_missing_locations(node) for node in kept], given, wanted)


def _constants(path: Path, *names: str, of_class: str | None = None, given: Cut | None = None) -> Cut:
    """The constants `names` of a file, or of a class in it."""
    body = _parsed(path).body
    if of_class is not None:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == of_class)
    found = [node for node in body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names]
    return _run(path, found, given or {}, names)


def _run(path: Path, nodes: list[Any], given: Cut, names: Iterable[str]) -> Cut:
    space = {"__name__": __name__, **given}  # a module that exists, which dataclasses look up
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(nodes, []), str(path), "exec", flags), space)
    return {name: space[name] for name in names}

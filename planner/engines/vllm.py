"""Run units on vLLM 0.33: every pod answers requests, and vLLM's router spreads requests over all pods.

vLLM's options in terms of the plan, with DeepSeek's decode unit of 144 GPUs as the worked example:
    --tensor-parallel-size       GPUs that share attention                                      1
    --data-parallel-size         groups that each own their requests                            144
    --data-parallel-size-local   those of one pod                                               8
    --max-num-seqs               requests of one group                                          128
    --kv-cache-memory-bytes      KV of one GPU, in bytes and not as a share of its memory

A pod's first rank follows from `--node-rank`. Each pod has an API server of its own (hybrid load balancing).

vLLM reads no expert map. It starts with expert e in slot e and with the first experts again in the redundant slots.
Then it counts loads and moves experts from time to time (`--enable-eplb`). So the plan's map only shows what vLLM can
reach. For some models and weight formats vLLM moves no experts and rejects the option (`facts/engine_models.py`).

KV goes from prefill to decode by NIXL. Its connector deprecates `kv_both`, so each side declares its role. Every pod
answers requests, and the router calls each of them.

`dual_batch` is vLLM's dual-batch overlap, which switches micro-batches at dispatch and combine. vLLM has nothing like
`five_stage`.

Sources: github.com/vllm-project/vllm 0.33.0, vllm: engine/arg_utils.py, config/{parallel,cache,kv_transfer,vllm}.py,
distributed/eplb/eplb_state.py, distributed/device_communicators/all2all.py (DeepEPLLAll2AllManager),
v1/metrics/loggers.py, envs.py, entrypoints; there at 0a5110ef,
docs/features/nixl_connector_compatibility.md (drafts alike in both phases); vllm-router 0.1.17, README and
vllm_router/router_args.py.
"""

import json
from collections.abc import Iterator
from math import ceil
from typing import Any

from planner.engines.container import CACHES, LEADER, POD_ADDRESS, WORKER, Container, PhaseFacts, Probe
from planner.engines.edge import ROUTER_ADDRESS, ROUTER_PORT, make_edge
from planner.engines.own_options import attention_options, own_options
from planner.engines.routers import discovery_options, health_check_options
from planner.engines.sglang import captured_batches
from planner.facts.engine_models import ENGINE_MODELS, can_move_experts
from planner.facts.engines import ENGINES
from planner.facts.exchange import queue_variables
from planner.facts.quantisation import KvDtype, kv_dtype
from planner.facts.terms import Phase, Precision
from planner.layout.dispatch import decode_step_tokens
from planner.layout.unit import Unit
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec

HTTP_PORT = 8000
RENDEZVOUS_PORT, RPC_PORT = 29501, 29550
SIDE_CHANNEL_PORT = 5600  # NIXL's port of a pod's first rank; further ranks have the next ports
ROUTER_METRICS_PORT = 29000
# Source: github.com/llm-d/llm-d 39507f36
# guides/wide-ep/modelserver/gpu/vllm-deepseek-r1-0528/base/disaggregatedset.yaml
HEALTH_SECONDS = 5  # the server has one thread, which first writes pending tokens and then answers

ALL_TO_ALL: dict[Phase, str] = {
    "prefill": "deepep_high_throughput",
    "decode": "deepep_low_latency",
    "mixed": "allgather_reducescatter",  # equally good for prompts and single tokens
}
QUANTIZATION: dict[Precision, str] = {"fp8": "fp8", "fp4": "modelopt_fp4"}
STATES = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}  # layout of linear layers' states that the KV connector requires
KV_DTYPES: dict[KvDtype, str] = {"bf16": "bfloat16", "fp8": "fp8"}

# The address that a pod gives to other pods. Without it vLLM would look for a route to a public address.
OWN_ADDRESS = {"VLLM_HOST_IP": POD_ADDRESS}

METRICS = {
    name: f"vllm:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "prompt_tokens_total",
        "generation_tokens_total",
    )
}

Option = tuple[str, ...]  # an option's name and values

# Options of a router for prefill and decode. By default a request goes to the pod that has its prefix, or else to the
# least busy pod. A dead pod is the least busy one, and in this mode the router does not retry. Decode pods get all KV
# from prefill, so requests can go to them in turn.
PAIRED: tuple[Option, ...] = (
    ("--vllm-pd-disaggregation",),
    ("--kv-connector", "nixl"),
    ("--decode-policy", "round_robin"),
)


def unit_container(spec: Spec, unit: Unit, known: PhaseFacts, image: str) -> Container:
    """Return the container that runs vLLM in each pod of `unit`."""
    version = spec.engine_version or ""
    phase, model = spec.phase(unit.phase), ENGINE_MODELS["vllm"][version][known.model_type]
    moves_experts = model.replicas and can_move_experts("vllm", version, phase.precision, known.other_method)
    options = (
        *_model(spec, phase, known),
        ("--host", POD_ADDRESS),
        ("--port", str(HTTP_PORT)),
        *_parallel(phase, unit),
        *_experts(phase, unit.phase, moves_experts=moves_experts),
        *attention_options(spec, unit.phase),
        *_memory(phase, unit.phase, known, model.page_tokens),
        *_draft_options(spec),
        *_transfer_options(unit.phase),
        ("--shutdown-timeout", str(ceil(spec.drain_s))),  # without it requests are aborted
        *own_options(spec.engine_args(unit.phase)),
    )
    ports = {"http": HTTP_PORT, "rendezvous": RENDEZVOUS_PORT, "rpc": RPC_PORT}
    nixl = {"VLLM_NIXL_SIDE_CHANNEL_HOST": POD_ADDRESS, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT)}
    return Container(
        image=image,
        command=("vllm", "serve", known.model_path),
        args=tuple(word for option in options for word in option),
        ports=ports | ({} if unit.phase == "mixed" else {"nixl": SIDE_CHANNEL_PORT}),
        liveness=Probe("/health", "http", HEALTH_SECONDS),
        readiness=Probe("/health", "http", HEALTH_SECONDS),
        start_s=known.start_s,
        metrics=Probe("/metrics", "http"),
        metric_names=METRICS,
        env=CACHES
        | OWN_ADDRESS
        | {"VLLM_ENGINE_READY_TIMEOUT_S": str(known.start_s)}
        | ({} if unit.phase == "mixed" else nixl | (STATES if model.keeps_states else {}))
        | _deep_ep_variables(phase, unit.phase, known),
    )


def router(spec: Spec, start_s: int, image: str) -> Container:
    """Return the container of vLLM's router, which finds the units' pods by label and calls the ready ones.

    Callers reach the router only through a proxy.
    """
    options: tuple[Option, ...] = (
        ("--host", ROUTER_ADDRESS),
        ("--port", str(ROUTER_PORT)),
        *([] if spec.mixed is not None else PAIRED),
        *discovery_options(spec, HTTP_PORT),
        *health_check_options(start_s),
        ("--prometheus-port", str(ROUTER_METRICS_PORT)),
        ("--prometheus-host", POD_ADDRESS),
    )
    return Container(
        image=image,
        command=("python3", "-m", "vllm_router.launch_router"),
        args=tuple(word for option in options for word in option),
        ports={"http": spec.gateway.port, "metrics": ROUTER_METRICS_PORT},
        liveness=Probe("/liveness", "http"),
        readiness=Probe("/readiness", "http"),
        start_s=start_s,
        metrics=Probe("/metrics", "metrics"),
        metric_names={},
        env=CACHES,
        edge=make_edge(spec.gateway.port, spec.kubernetes.gateway.edge_image or ENGINES["vllm"].edge_image or ""),
    )


def _model(spec: Spec, phase: PhaseSpec, known: PhaseFacts) -> Iterator[Option]:
    yield "--served-model-name", spec.served_model_name
    if known.brings_code:
        yield ("--trust-remote-code",)
    yield "--max-model-len", str(phase.max_request_tokens)
    yield "--dtype", "bfloat16"
    if phase.precision in QUANTIZATION and known.other_method is None:
        yield "--quantization", QUANTIZATION[phase.precision]
    yield "--kv-cache-dtype", KV_DTYPES[kv_dtype(phase.precision, phase.kv_precision)]


def _parallel(phase: PhaseSpec, unit: Unit) -> Iterator[Option]:
    groups, num_nodes = unit.ranks // phase.attention_tp, len(unit.nodes)
    yield "--tensor-parallel-size", str(phase.attention_tp)
    yield "--data-parallel-size", str(groups)
    if num_nodes > 1:
        yield "--data-parallel-size-local", str(groups // num_nodes)
        yield ("--data-parallel-hybrid-lb",)
        yield "--data-parallel-address", LEADER
        yield "--data-parallel-rpc-port", str(RPC_PORT)
        yield "--nnodes", str(num_nodes)
        yield "--node-rank", WORKER
        yield "--master-addr", LEADER
        yield "--master-port", str(RENDEZVOUS_PORT)


def _experts(phase: PhaseSpec, name: Phase, *, moves_experts: bool) -> Iterator[Option]:
    yield ("--enable-expert-parallel",)
    if moves_experts and phase.ep_size > 1:  # with one GPU, vLLM would refuse to start
        yield ("--enable-eplb",)
        yield "--eplb-config", _json(num_redundant_experts=phase.redundant_experts)
    if phase.ep_size > phase.attention_tp:
        yield "--all2all-backend", ALL_TO_ALL[name]
    if phase.overlap == "dual_batch":
        yield ("--enable-dbo",)


def _memory(phase: PhaseSpec, name: Phase, known: PhaseFacts, page_tokens: int) -> Iterator[Option]:
    yield "--gpu-memory-utilization", f"{known.static_fraction:.4f}"
    yield "--kv-cache-memory-bytes", str(known.kv_bytes)
    yield "--block-size", str(page_tokens)
    yield "--max-num-seqs", str(phase.max_requests)
    tokens = decode_step_tokens(phase) if name == "decode" else max(phase.max_batch_tokens, decode_step_tokens(phase))
    yield "--max-num-batched-tokens", str(tokens)
    if name != "prefill":
        sizes = (size * (1 + phase.draft_tokens) for size in captured_batches(phase.max_requests))  # in tokens
        yield "--cudagraph-capture-sizes", *map(str, sizes)


def _draft_options(spec: Spec) -> Iterator[Option]:
    """Yield the options for drafting tokens, which must be the same in prefill and decode."""
    if spec.draft_tokens:
        yield "--speculative-config", _json(method="mtp", num_speculative_tokens=spec.draft_tokens)


def _transfer_options(phase: Phase) -> Iterator[Option]:
    """Yield the options for KV transfer from prefill to decode; a mixed unit has none."""
    if phase != "mixed":
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[phase]
        yield "--kv-transfer-config", _json(kv_connector="NixlConnector", kv_role=role)


def _deep_ep_variables(phase: PhaseSpec, name: Phase, known: PhaseFacts) -> dict[str, str]:
    """Return the variables that low-latency kernels need beside `--all2all-backend`; empty without such kernels.

    Each GPU's queues hold a decode step's tokens of its whole group, because vLLM does not divide tokens between the
    group's GPUs. The normal kernels' buffer is left out: it would take 1 GiB and, on nodes with fewer than eight GPUs,
    open other nodes' memory. vLLM lets NVSHMEM use NVLink between nodes only if a variable allows it.
    """
    if name != "decode" or phase.ep_size == phase.attention_tp:
        return {}
    nvlink = {"VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL": "1"} if known.joins_nodes else {}
    return queue_variables(decode_step_tokens(phase)) | {"VLLM_DEEPEP_BUFFER_SIZE_MB": "0"} | nvlink


def _json(**values: Any) -> str:
    return json.dumps(values, sort_keys=True)

"""The engines that can run a plan: supported versions, images, and the rule by which tokens choose replicas.

An engine other than ours has its own rule for which replica of an expert a token goes to. Expert maps and their
predicted balance are made for that rule, so it is a fact of the engine and not a choice of the spec.

`planner/engines` has the engines' command lines and limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.facts.terms import EngineName, Overlap, SplitRule

OURS: EngineName = "tidemill"


@dataclass(frozen=True)
class EngineFacts:
    """The facts about an engine that no spec changes."""

    versions: tuple[str, ...]  # supported versions, the newest last; empty if the image decides
    image: str | None  # the image that the engine's makers publish
    router_image: str | None  # None: the engine's image has the router too
    split: SplitRule | None  # how tokens choose among replicas; None: the spec chooses
    overlaps: tuple[Overlap, ...]  # supported kinds of overlap, besides `none`
    reads_map: bool  # whether the engine starts with an expert map from a file
    sources: Mapping[str, str]
    edge_image: str | None = None  # of the proxy in front of a router that does not close routes itself
    groups_span_nodes: bool = True  # whether GPUs of several nodes may share attention
    decided: Mapping[str, str] = field(default_factory=dict)  # option, alias included -> the field that decides it

    @property
    def newest(self) -> str | None:
        """Return the newest supported version, the default; None if the image decides."""
        return self.versions[-1] if self.versions else None


def _invert_options(decided: Mapping[str, str]) -> dict[str, str]:
    """Return option -> field, from field -> options separated by spaces. PHASE in a field stands for any phase."""
    return {option: where for where, options in decided.items() for option in options.split()}


# Field -> the options that it decides, with all their aliases. Other values of these would make
# a unit that differs from the planned one, so a spec may not add them.
SGLANG_DECIDED = _invert_options(
    {
        "model.checkpoint": "model-path model load-format",
        "model.name": "served-model-name",
        "PHASE.max_request_tokens": "context-length",
        "PHASE.precision": "dtype quantization",
        "PHASE.kv_precision": "kv-cache-dtype",
        "PHASE.ep_size": "tp-size tensor-parallel-size ep-size expert-parallel-size ep pp-size pipeline-parallel-size"
        " moe-a2a-backend deepep-mode deepep-dispatcher-output-dtype moe-runner-backend moe-dense-tp-size",
        "PHASE.attention_tp": "attn-dp-size attention-data-parallel-size dp-size data-parallel-size"
        " enable-dp-attention enable-dp-lm-head",
        "PHASE.redundant_experts": "ep-num-redundant-experts",
        "expert_load": "init-expert-location ep-dispatch-algorithm",
        "PHASE.overlap": "enable-two-batch-overlap",
        "PHASE.max_requests": "max-running-requests cuda-graph-bs-decode max-mamba-cache-size disable-radix-cache",
        "PHASE.max_batch_tokens": "chunked-prefill-size max-prefill-tokens",
        "PHASE.max_kv_tokens": "mem-fraction-static max-total-tokens page-size",
        "PHASE.draft_tokens": "speculative-algorithm speculative-num-steps speculative-eagle-topk"
        " speculative-num-draft-tokens",
        "cluster.nodes": "host port nnodes node-rank dist-init-addr nccl-init-addr disaggregation-mode"
        " disaggregation-transfer-backend disaggregation-bootstrap-port enable-metrics",
        "kubernetes.nics": "disaggregation-ib-device",
        "kubernetes.ready_timeout": "watchdog-timeout",
    }
)
VLLM_DECIDED = _invert_options(
    {
        "model.checkpoint": "model",
        "model.name": "served-model-name",
        "PHASE.max_request_tokens": "max-model-len",
        "PHASE.precision": "dtype quantization",
        "PHASE.kv_precision": "kv-cache-dtype",
        "PHASE.ep_size": "data-parallel-size data-parallel-size-local enable-expert-parallel disable-expert-parallel"
        " all2all-backend pipeline-parallel-size",
        "PHASE.attention_tp": "tensor-parallel-size",
        "PHASE.redundant_experts": "enable-eplb disable-eplb eplb-config",
        "PHASE.overlap": "enable-dbo disable-dbo",
        "PHASE.max_requests": "max-num-seqs cudagraph-capture-sizes",
        "PHASE.max_batch_tokens": "max-num-batched-tokens",
        "PHASE.max_kv_tokens": "gpu-memory-utilization device-memory-utilization kv-cache-memory-bytes block-size",
        "PHASE.draft_tokens": "speculative-config",
        "cluster.nodes": "host port nnodes node-rank master-addr master-port data-parallel-address"
        " data-parallel-rpc-port data-parallel-hybrid-lb no-data-parallel-hybrid-lb data-parallel-external-lb"
        " no-data-parallel-external-lb data-parallel-rank data-parallel-start-rank headless kv-transfer-config",
        "kubernetes.drain": "shutdown-timeout",
    }
)

ENGINES: dict[EngineName, EngineFacts] = {
    "tidemill": EngineFacts(
        versions=(),
        image=None,
        router_image=None,
        split=None,
        overlaps=("dual_batch", "five_stage"),
        reads_map=True,
        sources={
            "split": "the launch file's `split`",
            "overlaps": "the launch file's `overlap`",
            "reads_map": "the launch file's `expert_map`",
        },
    ),
    "sglang": EngineFacts(
        versions=("0.5.23",),
        image="lmsysorg/sglang:v{version}",
        router_image=None,
        split="first_on_node",
        overlaps=("dual_batch", "five_stage"),
        reads_map=True,
        sources={
            "split": "github.com/sgl-project/sglang 0.5.23 python/sglang/srt/eplb/expert_location.py, "
            "_find_nearest_expert; eplb/expert_location_dispatch.py, algorithm dynamic",
            "overlaps": "there, batch_overlap/operations_strategy.py: prefill and decode are cut differently",
            "reads_map": "there, compute_initial_expert_location_metadata",
            "image": "assumed: named as those of earlier versions are",
            "router_image": "assumed: the engine's image holds sglang-router too",
        },
        decided=SGLANG_DECIDED,
    ),
    "vllm": EngineFacts(
        versions=("0.33.0",),
        image="vllm/vllm-openai:v{version}",
        router_image="vllm/vllm-router:v0.1.17",
        split="equal",
        overlaps=("dual_batch",),
        reads_map=False,
        sources={
            "split": "github.com/vllm-project/vllm 0.33.0 vllm/distributed/eplb: an expert's tokens go to its replicas "
            "by turns",
            "overlaps": "github.com/vllm-project/vllm 0.33.0 vllm/v1/worker/ubatching.py: two micro-batches, whole "
            "attention",
            "reads_map": "there, eplb_state.py, build_initial_global_physical_to_logical_map",
            "image": "assumed: named as those of earlier versions are",
            "router_image": "assumed: github.com/vllm-project/router e0c942d4 "
            ".buildkite/scripts/publish-release-images.sh names releases so; seen were latest and nightly. vLLM's own "
            "image has no router: its wheel does not ask for one",
            "edge_image": "assumed: nginx's makers publish it for users other than root, and Dockerfiles build on it",
        },
        decided=VLLM_DECIDED,
        edge_image="nginxinc/nginx-unprivileged:1.29.4-alpine",
        groups_span_nodes=False,  # vllm 0.33.0 config/parallel.py, nnodes_within_dp: each pod serves requests
    ),
}

"""Whether a plan's launch documents tell what the plan does: each is made again from the plan, and compared.

A plan whose digests were all computed again after an edit agrees with itself as far as digests go. What ranks are told
must still be what a reviewer reads: the spec's limits, ports and names, the units' places and the phases' maps. So the
documents are made again by the writer of launch files. Only what the writer has from files is taken from the documents
themselves: the checkpoint, and the bytes of a token's KV.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.facts import names
from planner.facts.checkpoint_manifest import MANIFEST
from planner.facts.terms import Phase
from planner.layout.memory import kv_bytes, static_fraction
from planner.layout.unit import Unit
from planner.plan.launch import Known, LaunchDocument, documents_for
from planner.problems.finding import Finding
from planner.spec.schema import Spec

__all__ = ["told_otherwise"]

REASON = "what ranks are told is made of the plan"
FIX = "change the spec and plan it again"


def told_otherwise(
    spec: Spec, units: Sequence[Unit], data: Mapping[str, Any], written: Mapping[str, LaunchDocument]
) -> Iterator[Finding]:
    """What the launch documents `written`, of the plan's JSON `data`, tell otherwise than the rest of the plan.

    `data` has the shapes of a plan, its units and documents name each other, and maps are written out in documents.
    """
    yield from _of_checkpoint(spec, data, written[names.GATEWAY_LAUNCH_FILE]["checkpoint"])
    first = written[names.launch_file(units[0].name)]
    kv_of = {phase: _kv_bytes(each, spec.phase(phase).max_requests) for phase, each in data["memory"].items()}
    known = Known(
        checkpoint=written[names.GATEWAY_LAUNCH_FILE]["checkpoint"],
        kv_bytes_per_token=first["kv_cache"]["bytes_per_token"],
        kv_tokens={phase: each["kv_tokens"] for phase, each in data["memory"].items()},
        expert_maps=_maps(data, units),
        first_moe_layer=(first.get("expert_map") or {}).get("first_layer", 0),
        kv_bytes=kv_of,
        static_fractions={
            phase: static_fraction(spec.engine_name, each["weights_bytes"], kv_of[phase], each["gpu_bytes"])
            for phase, each in data["memory"].items()
        },
        weights_bytes={phase: each["weights_bytes"] for phase, each in data["memory"].items()},
        model_type=first.get("model_type", ""),
        brings_code=first.get("brings_code", False),
        other_method=first.get("quant_method"),
        is_runnable=data["runnable"],
    )
    for file, document in documents_for(spec, units, known).items():
        for path, value in _differences(written[file], document):
            rule = "S908 must agree with the rest of the plan"
            yield Finding(f"launch_documents.{file}.{path}", value, rule, REASON, FIX)


def _of_checkpoint(spec: Spec, data: Mapping[str, Any], checkpoint: LaunchDocument | None) -> Iterator[Finding]:
    """The weights are those that the spec names, beside the config that was read."""
    for key, (value, source) in _expected(spec, data["inputs"]).items():
        told = checkpoint[key] if checkpoint else None
        if told != value and (checkpoint or key == "uri"):
            where = f"launch_documents.{names.GATEWAY_LAUNCH_FILE}.checkpoint.{key}"
            yield Finding(where, told, f"S908 must agree with {source}", REASON, FIX)


def _expected(spec: Spec, inputs: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Each key of a checkpoint: its value, and where the plan says that."""
    uri, model = (spec.checkpoint, "spec.model.checkpoint"), spec.model
    if isinstance(model, str) or model.config is None:
        keys = ("config_digest", "weights_digest")
        return {"uri": uri} | {key: (getattr(model, key, None), f"spec.model.{key}") for key in keys}
    manifest = str(Path(model.config).with_name(MANIFEST))
    of_config, of_weights = inputs.get(model.config), inputs.get(manifest)
    return {"uri": uri, "config_digest": (of_config, "inputs"), "weights_digest": (of_weights, "inputs")}


def _kv_bytes(memory: Mapping[str, int], max_requests: int) -> int:
    """The KV of a phase's rank, of its memory as the plan has it."""
    fixed = max_requests * memory.get("kv_bytes_per_request", 0)
    return kv_bytes(memory["kv_tokens"], memory["kv_bytes_per_token"], fixed)


def _maps(data: Mapping[str, Any], units: Sequence[Unit]) -> dict[Phase, LaunchDocument]:
    """Each phase's map, as its documents have it."""
    sha256s = {unit.phase: each["expert_map"] for unit, each in zip(units, data["units"], strict=True)}
    return {
        phase: {
            "sha256": sha256,
            "num_logical_experts": data["phases"][phase]["num_logical_experts"],
            "physical_to_logical": data["expert_maps"][sha256]["physical_to_logical"],
        }
        for phase, sha256 in sha256s.items()
    }


def _differences(written: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and value of what is written otherwise than expected, or is not expected; digests of it come last."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for key in sorted(written.keys() | expected.keys(), key=lambda key: (key.endswith("_digest"), key)):
            yield from _differences(written.get(key), expected.get(key), f"{path}.{key}".lstrip("."))
    elif type(written) is not type(expected) or written != expected:
        yield path, written

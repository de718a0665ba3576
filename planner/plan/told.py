"""Whether a plan's launch documents tell what the plan does: each is made again from the plan, and compared.

A plan whose digests were all computed again after an edit agrees with itself as far as digests go. What ranks are told
must still be what a reviewer reads: the spec's limits, ports and names, the units' places and the phases' maps. So the
documents are made again by the writer of launch files. Only what the writer has from files is taken from the documents
themselves: the checkpoint, and the bytes of a token's KV.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.facts import names
from planner.facts.checkpoint_manifest import MANIFEST
from planner.facts.terms import Phase
from planner.plan.launch import Known, LaunchDocument, documents_for
from planner.plan.plan import Plan
from planner.problems.finding import Finding
from planner.spec.schema import Spec

__all__ = ["differences", "told_otherwise"]

REASON = "what ranks are told is made of the plan"
FIX = "change the spec and plan it again"


def told_otherwise(plan: Plan) -> Iterator[Finding]:
    """Yield what launch documents tell otherwise than the rest of the plan; its units and documents name each other."""
    spec, written = plan.spec, plan.documents
    checkpoint = written[names.GATEWAY_LAUNCH_FILE]["checkpoint"]
    yield from _of_checkpoint(plan, checkpoint)
    first = plan.unit_document(plan.units[0])
    known = Known(
        checkpoint=checkpoint,
        kv_bytes_per_token=first["kv_cache"]["bytes_per_token"],
        memory=plan.memory,
        expert_maps=_maps(plan),
        first_moe_layer=(first.get("expert_map") or {}).get("first_layer", 0),
        model_type=plan.model.model_type,
        brings_code=first.get("brings_code", False),
        other_method=first.get("quant_method"),
        is_runnable=plan.runnable,
    )
    for file, document in documents_for(spec, plan.units, known).items():
        for path, value in differences(written[file], document):
            rule = "S908 must agree with the rest of the plan"
            yield Finding(f"launch_documents.{file}.{path}", value, rule, REASON, FIX)


def _of_checkpoint(plan: Plan, checkpoint: LaunchDocument | None) -> Iterator[Finding]:
    """The weights are those that the spec names, beside the config that was read."""
    for key, (value, source) in _expected(plan.spec, plan.inputs).items():
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


def _maps(plan: Plan) -> dict[Phase, LaunchDocument]:
    """Each phase's map, as its documents have it."""
    return {
        phase: {
            "sha256": sha256,
            "num_logical_experts": plan.phases[phase].num_logical_experts,
            "physical_to_logical": plan.expert_maps[sha256].physical_to_logical,
        }
        for phase, sha256 in plan.map_of.items()
    }


def differences(written: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and value of what is written otherwise than expected, or is not expected; digests of it come last."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for key in sorted(written.keys() | expected.keys(), key=lambda key: (key.endswith("_digest"), key)):
            yield from differences(written.get(key), expected.get(key), f"{path}.{key}".lstrip("."))
    elif type(written) is not type(expected) or written != expected:
        yield path, written

"""Verify that a plan's launch documents match the rest of the plan, by building them again.

An edited plan with recomputed digests still agrees with itself. But ranks must be told what a reviewer reads: the
spec's limits, ports and names, the units' places and the phases' maps. So the writer of launch files builds the
documents again from the plan. It takes only two things from the documents: the checkpoint, and the KV bytes per token.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.facts import names
from planner.facts.checkpoint_manifest import MANIFEST
from planner.facts.terms import Phase
from planner.plan.launch import LaunchDocument, LaunchInputs, build_launch_documents
from planner.plan.plan import Plan
from planner.problems.finding import Finding
from planner.spec.schema import Spec

__all__ = ["checkpoint_files", "differences", "expected_checkpoint", "verify_launch_documents"]

REASON = "launch documents are built from the plan"
FIX = "change the spec and plan it again"


def verify_launch_documents(plan: Plan) -> Iterator[Finding]:
    """Yield each field of a launch document that differs from the rest of the plan.

    The plan's references must have been checked before.
    """
    spec, written = plan.spec, plan.documents
    checkpoint = written[names.GATEWAY_LAUNCH_FILE]["checkpoint"]
    yield from _verify_checkpoint(plan, checkpoint)
    first = plan.unit_document(plan.units[0])
    known = LaunchInputs(
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
    for file, document in build_launch_documents(spec, plan.units, known).items():
        for path, value in differences(written[file], document):
            rule = "S908 must agree with the rest of the plan"
            yield Finding(f"launch_documents.{file}.{path}", value, rule, REASON, FIX)


def _verify_checkpoint(plan: Plan, checkpoint: LaunchDocument | None) -> Iterator[Finding]:
    """Yield each checkpoint field that differs from the spec or from the recorded inputs."""
    for key, (value, source) in expected_checkpoint(plan.spec, plan.inputs).items():
        stored = checkpoint[key] if checkpoint else None
        if stored != value and (checkpoint or key == "uri"):
            where = f"launch_documents.{names.GATEWAY_LAUNCH_FILE}.checkpoint.{key}"
            yield Finding(where, stored, f"S908 must agree with {source}", REASON, FIX)


def expected_checkpoint(spec: Spec, inputs: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Return each checkpoint key with its expected value and the field that the value comes from."""
    uri, model = (spec.checkpoint, "spec.model.checkpoint"), spec.model
    files = checkpoint_files(spec)
    if not files:
        keys = ("config_digest", "weights_digest")
        return {"uri": uri} | {key: (getattr(model, key, None), f"spec.model.{key}") for key in keys}
    of_config, of_weights = map(inputs.get, files)
    return {"uri": uri, "config_digest": (of_config, "inputs"), "weights_digest": (of_weights, "inputs")}


def checkpoint_files(spec: Spec) -> tuple[str, ...]:
    """Return the names of the checkpoint's config and manifest, of which launch files have digests; none without."""
    if isinstance(spec.model, str) or spec.model.config is None:
        return ()
    return spec.model.config, str(Path(spec.model.config).with_name(MANIFEST))


def _maps(plan: Plan) -> dict[Phase, LaunchDocument]:
    """Return each phase's map in the form of launch documents."""
    return {
        phase: {
            "sha256": sha256,
            "num_logical_experts": plan.phases[phase].num_logical_experts,
            "physical_to_logical": plan.expert_maps[sha256].physical_to_logical,
        }
        for phase, sha256 in plan.map_of.items()
    }


def differences(written: Any, expected: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and written value of each difference. A container's digests come last."""
    if isinstance(written, dict) and isinstance(expected, dict):
        for key in sorted(written.keys() | expected.keys(), key=lambda key: (key.endswith("_digest"), key)):
            yield from differences(written.get(key), expected.get(key), f"{path}.{key}".lstrip("."))
    elif type(written) is not type(expected) or written != expected:
        yield path, written

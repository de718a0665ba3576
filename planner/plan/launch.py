"""Write launch files: everything an engine reads, one document per unit and one for the gateway.

Launch files are the only interface between plan and runtime. `tests/contract/launch.schema.json` binds this writer and
the reader, `runtime/launch.py`. A unit's document lists no other units: processes discover each other. Each document
has digests over canonical JSON, so that a change restarts only the processes it affects:
    kv_digest       what prefill and decode must share to exchange KV
    unit_digest     what the ranks of one unit must share to join
    launch_digest   the document itself

For other engines the documents hold the adapter's containers (`planner/engines`) instead of our runtime's own fields.
Their kind is the engine's name, which our runtime refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.estimate.loading import start_budget_s
from planner.facts import names
from planner.facts.digest import canonical_json, digest_of, digest_of_texts
from planner.facts.engines import ENGINES, OURS
from planner.facts.names import Ports
from planner.facts.quantisation import KvDtype, kv_dtype
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import Phase
from planner.layout.memory import KEEPS_KV, kv_bytes, round_up_to_pages, static_fraction
from planner.layout.nodes import spares_with
from planner.layout.unit import Unit
from planner.plan.pods import uses_multinode_nvlink
from planner.plan.sections import Memory
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec

LAUNCH_VERSION = 2
KV_WIRE_VERSION = 11
# A rank on a CPU compiles before it is ready, so a step stalls only in a collective, which times out after 120 s
# (STEP_TIMEOUT in `runtime/expert_parallel/group.py`). The rest allows for heartbeats, which come every 10 s.
CPU_STALL_S = 150
# Addresses and digests: they do not change what the ranks compute.
NOT_IN_UNIT_DIGEST = ("kind", "kv_digest", "unit_digest", "launch_digest", "gateway", "tls", "ports")

LaunchDocument = dict[str, Any]


@dataclass(frozen=True)
class LaunchInputs:
    """The values that launch documents need beyond the spec, from files it names and from planning."""

    checkpoint: LaunchDocument | None
    kv_bytes_per_token: int
    memory: Mapping[Phase, Memory]  # of one rank; empty if the memory of GPUs is unknown
    expert_maps: Mapping[Phase, LaunchDocument]
    first_moe_layer: int  # the model layer of a map's first row
    model_type: str  # of the checkpoint's config.json
    brings_code: bool  # whether other engines run code from the checkpoint
    is_runnable: bool
    other_method: str | None = None  # quantisation method, if unusual for the precision


def launch_documents(spec: Spec, units: Sequence[Unit], inputs: LaunchInputs) -> dict[str, LaunchDocument]:
    """Return file name -> launch document, for the units in order and then the gateway."""
    spares = {
        phase: spares_with(spec.cluster, spec.gpu_name(phase), spec.kubernetes.tolerations) for phase in spec.phases
    }
    maps = {phase: _PhaseMap(_phase_map_fields(phase, spec, inputs)) for phase in spec.phases}
    documents = {
        names.launch_file(unit.name): _unit_document(spec, unit, spares[unit.phase], maps[unit.phase], inputs)
        for unit in units
    }
    return documents | {names.GATEWAY_LAUNCH_FILE: _gateway_document(spec, units, inputs)}


def kv_dtype_of(spec: Spec) -> KvDtype:
    """Return the KV type of all phases. A rule requires one type."""
    phase = spec.phase(spec.phases[-1])
    return kv_dtype(phase.precision, phase.kv_precision)


def unit_digest(document: LaunchDocument) -> str:
    """Return the digest of the fields that the ranks of a unit must share to join."""
    return _unit_digest(_canonical_values(document))


def launch_digest(document: LaunchDocument) -> str:
    """Return the digest of the whole document except its own digest field."""
    return _launch_digest(_canonical_values(document))


def move_disk(document: LaunchDocument, path: str) -> LaunchDocument:
    """Return the document with the folder of its KV disk replaced by `path`; unchanged if it has no KV disk."""
    if "disk" not in document["limits"]:
        return document
    limits = document["limits"] | {"disk": document["limits"]["disk"] | {"path": path}}
    moved = document | {"limits": limits}
    moved["unit_digest"] = unit_digest(moved)
    return moved | {"launch_digest": launch_digest(moved)}


def strip_map(document: LaunchDocument) -> LaunchDocument:
    """Return the document with only the digest of its map, because the plan's JSON holds each shared map once."""
    if document["kind"] == "gateway" or document.get("expert_map") is None:
        return document
    named = {key: value for key, value in document["expert_map"].items() if key != "physical_to_logical"}
    return document | {"expert_map": named}


def restore_map(document: LaunchDocument, maps: Mapping[str, Sequence[Sequence[int]]]) -> LaunchDocument:
    """Return the document with the map that `strip_map` removed. `maps` are keyed by digest."""
    if document["kind"] == "gateway" or document.get("expert_map") is None:
        return document
    named = document["expert_map"]
    return document | {"expert_map": named | {"physical_to_logical": maps[named["sha256"]]}}


class _PhaseMap:
    """A phase's expert map and its canonical JSON, computed once for all units of the phase."""

    def __init__(self, document: LaunchDocument | None) -> None:
        self.document = document
        self.text = canonical_json(document)


def _phase_map_fields(phase: Phase, spec: Spec, inputs: LaunchInputs) -> LaunchDocument | None:
    """Return a phase's expert map as a field of launch documents, or None if the engine reads no map."""
    if not ENGINES[spec.engine_name].reads_map:
        return None
    first = {} if spec.engine_name == OURS else {"first_layer": inputs.first_moe_layer}
    return inputs.expert_maps[phase] | first


def _unit_document(
    spec: Spec, unit: Unit, spares: Sequence[str], phase_map: _PhaseMap, inputs: LaunchInputs
) -> LaunchDocument:
    phase = spec.phase(unit.phase)
    shared = _kv_contract(spec, inputs)
    document: LaunchDocument = {
        "version": LAUNCH_VERSION,
        "kind": "unit",
        "unit": unit.name,
        "phase": unit.phase,
        "device": spec.device(unit.phase),
        **_unit_places(unit, spares),
        **({} if phase_map.document is None else {"expert_map": phase_map.document}),
        "precision": phase.precision,
        "overlap": phase.overlap,
        "deterministic": spec.deterministic,
        **shared,
        "kv_digest": digest_of(shared),
        "limits": _limits(phase, phase, _kv_tokens(phase, unit.phase, inputs)) | _kv_tiers(spec, unit),
    }
    document |= _tidemill_fields(spec) if spec.engine_name == OURS else _engine_fields(spec, unit, inputs)
    texts = _canonical_values(document, phase_map.text)
    document["unit_digest"] = _unit_digest(texts)
    return document | {
        "launch_digest": _launch_digest(texts | _canonical_values({"unit_digest": document["unit_digest"]}))
    }


def _tidemill_fields(spec: Spec) -> LaunchDocument:
    """Return the fields that only our runtime reads."""
    return {
        "split": spec.split,
        "gateway": {"service": names.registry_name(spec.name)},
        "tls": {"gateway": names.gateway_identity(spec.kubernetes.namespace, spec.name)},
        "ports": {
            "places": Ports.PLACES,
            "rendezvous": Ports.RENDEZVOUS,
            "kv": Ports.KV,
            "registry": Ports.REGISTRY,
            "metrics": Ports.METRICS,
        },
    }


def _engine_fields(spec: Spec, unit: Unit, inputs: LaunchInputs) -> LaunchDocument:
    """Return the fields for another engine. The container is missing if the engine cannot run the plan."""
    from planner.engines.adapters import unit_container  # imported here: our own engine needs none
    from planner.engines.container import PhaseFacts

    fields: LaunchDocument = {
        "kind": spec.engine_name,
        "engine": {"name": spec.engine_name, "version": spec.engine_version},
        "model_type": inputs.model_type,
        **({"brings_code": True} if inputs.brings_code else {}),
        **({} if inputs.other_method is None else {"quant_method": inputs.other_method}),
    }
    if inputs.is_runnable:
        assert spec.checkpoint is not None
        memory, max_requests = inputs.memory[unit.phase], spec.phase(unit.phase).max_requests
        in_kv = kv_bytes(memory.kv_tokens, memory.kv_bytes_per_token, max_requests * memory.kv_bytes_per_request)
        fraction = static_fraction(spec.engine_name, memory.weights_bytes, in_kv, memory.gpu_bytes)
        start_s, joined = _unit_start_budget_s(spec, unit, inputs), uses_multinode_nvlink(spec, unit)
        more = (inputs.brings_code, joined, inputs.other_method)
        phased = PhaseFacts(spec.checkpoint, inputs.model_type, memory.kv_tokens, in_kv, fraction, start_s, *more)
        fields["container"] = unit_container(spec, unit, phased).as_document()
    return fields


def _unit_start_budget_s(spec: Spec, unit: Unit, inputs: LaunchInputs) -> int:
    return start_budget_s(spec.kubernetes, spec.engine_name, inputs.memory[unit.phase].read_bytes * unit.ranks_per_node)


def _unit_places(unit: Unit, spares: Sequence[str]) -> LaunchDocument:
    """Return the unit's ranks, places and spare nodes. Each node is a place; a spare takes over a whole place."""
    ranks = [
        {"place": each.rank // unit.ranks_per_node, "local_rank": each.local_rank, "rank": each.rank}
        for each in unit.rank_places
    ]
    return {"ranks": ranks, "places": list(unit.nodes), "spares": list(spares)}


def _gateway_document(spec: Spec, units: Sequence[Unit], inputs: LaunchInputs) -> LaunchDocument:
    first, last = (spec.phase(spec.phases[end]) for end in (0, -1))
    fields: LaunchDocument = {}
    if spec.engine_name == OURS:
        fields["tls"] = {"units": names.unit_identities(spec.kubernetes.namespace, spec.name)}
        fields |= {"sharing": "all"} if spec.kv_cache.sharing == "all" else {}
    else:
        from planner.engines.adapters import gateway_container  # as above

        fields["engine"] = {"name": spec.engine_name, "version": spec.engine_version}
        if inputs.is_runnable:
            start_s = max(_unit_start_budget_s(spec, unit, inputs) for unit in units)
            fields["container"] = gateway_container(spec, start_s).as_document()
    document = fields | {
        "version": LAUNCH_VERSION,
        "kind": "gateway",
        "kv_digest": digest_of(_kv_contract(spec, inputs)),
        "model": _served_model(spec),
        "checkpoint": inputs.checkpoint,
        "limits": _limits(first, last, _kv_tokens(last, spec.phases[-1], inputs)),
        "max_queued_requests": spec.gateway.max_queued_requests,
        "stall_timeout_s": _stall_timeout_s(spec),
        "resume_timeout_s": ceil(spec.gateway.resume_timeout),
        "ports": {"http": spec.gateway.port, "registry": Ports.REGISTRY, "metrics": Ports.METRICS},
    }
    return document | {"launch_digest": launch_digest(document)}


def _stall_timeout_s(spec: Spec) -> int:
    """Return the seconds a step may take before the gateway drops its rank.

    The first step on a GPU compiles kernels.
    """
    on_gpus = any(spec.device(phase) != "cpu" for phase in spec.phases)
    most = ceil(spec.kubernetes.stall_timeout)
    return most if on_gpus else min(most, CPU_STALL_S)


def _kv_contract(spec: Spec, inputs: LaunchInputs) -> LaunchDocument:
    kv_cache = {
        "wire_version": KV_WIRE_VERSION,
        "dtype": kv_dtype_of(spec),
        "bytes_per_token": inputs.kv_bytes_per_token,
        **({} if spec.kv_cache.transport == "tcp" else {"transport": spec.kv_cache.transport}),
    }
    return {"kv_cache": kv_cache, "model": _served_model(spec), "checkpoint": inputs.checkpoint}


def _served_model(spec: Spec) -> LaunchDocument:
    return {"name": spec.served_model_name}


def _limits(prefill: PhaseSpec, decode: PhaseSpec, kv_tokens: int) -> LaunchDocument:
    """Return a unit's limits: prefill's batch limit and decode's request limits.

    `max_request_tokens` is the same in both, as a rule requires.
    """
    return {
        "max_requests": decode.max_requests,
        "max_request_tokens": decode.max_request_tokens,
        "max_batch_tokens": prefill.max_batch_tokens,
        "kv_tokens": kv_tokens,
    }


def _kv_tiers(spec: Spec, unit: Unit) -> LaunchDocument:
    """Return the host memory and disk in which each rank keeps KV of prompts; empty if it keeps none."""
    kept, disk = spec.kv_cache, spec.kv_cache.disk
    if kept.memory is None or unit.phase not in KEEPS_KV:
        return {}
    found: LaunchDocument = {"host_bytes": kept.memory}
    if disk is not None:
        found["disk"] = {"path": disk.path, "max_bytes": disk.size}
        if disk.bandwidth is not None:
            found["disk"]["bytes_per_s"] = max(int(disk.bandwidth * BYTES_PER_GBIT / unit.ranks_per_node), 1)
    return found


def _kv_tokens(spec: PhaseSpec, phase: Phase, inputs: LaunchInputs) -> int:
    """Return a rank's KV tokens in whole pages, as planned. If memory is unknown, all requests have full length.

    `max_kv_tokens` limits them.
    """
    if phase in inputs.memory:
        return inputs.memory[phase].kv_tokens
    most = spec.max_requests * round_up_to_pages(spec.max_request_tokens)
    return most if spec.max_kv_tokens is None else min(most, round_up_to_pages(spec.max_kv_tokens))


def _canonical_values(document: LaunchDocument, map_text: str | None = None) -> dict[str, str]:
    """Return each value of `document` as canonical JSON. `map_text` is the expert map, if serialised already."""
    serialised = {} if map_text is None else {"expert_map": map_text}
    return {key: serialised[key] if key in serialised else canonical_json(value) for key, value in document.items()}


def _unit_digest(texts: Mapping[str, str]) -> str:
    return digest_of_texts({key: text for key, text in texts.items() if key not in NOT_IN_UNIT_DIGEST})


def _launch_digest(texts: Mapping[str, str]) -> str:
    return digest_of_texts({key: text for key, text in texts.items() if key != "launch_digest"})

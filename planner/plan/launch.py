"""Launch files: all that an engine is told, one document for each unit and one for the gateway.

The only seam between plan and runtime. `tests/contract/launch.schema.json` binds this writer and the reader,
`runtime/launch.py`. Peers are not listed: they are discovered. Three digests, each over canonical JSON, so that what
changes restarts only whom it concerns:
    kv_digest       what prefill and decode must share to exchange KV
    unit_digest     what the ranks of one unit must share to join
    launch_digest   the document itself

Where the engine is not ours, the documents hold the containers of its adapter (`planner/engines`) instead of what only
our runtime reads. Their kind is the engine's name, which our runtime refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.engines.adapters import gateway_container, unit_container
from planner.engines.container import Phased
from planner.estimate.loading import start_budget_s
from planner.expert_map import ExpertMap
from planner.facts import names
from planner.facts.digest import canonical_json, digest_of, digest_of_texts
from planner.facts.engines import ENGINES, OURS
from planner.facts.names import Ports
from planner.facts.terms import Phase
from planner.layout.memory import in_pages, kv_bytes, static_fraction
from planner.layout.nodes import spares_with
from planner.layout.unit import Unit
from planner.placement.place import Placement
from planner.plan.pods import joins_nodes
from planner.plan.sections import Memory
from planner.spec.phase import PhaseSpec
from planner.spec.precision import KV_BYTES, KvDtype, kv_dtype
from planner.spec.resolved import ResolvedSpec
from planner.spec.schema import Spec

__all__ = [
    "Known",
    "LaunchDocument",
    "documents_for",
    "launch_digest",
    "launch_documents",
    "unit_digest",
    "with_map",
    "without_map",
]

LAUNCH_VERSION = 2
KV_WIRE_VERSION = 10
# A rank on a CPU compiles before it is ready, and its unit's collectives end a step after 120 s (STEP_TIMEOUT in
# `runtime/expert_parallel/group.py`). The rest is for its word, which comes every 10 s.
CPU_STALL_S = 150
# Where things are, and the digests themselves: not what the ranks compute.
NOT_IN_UNIT_DIGEST = ("kind", "kv_digest", "unit_digest", "launch_digest", "gateway", "tls", "ports")

LaunchDocument = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What documents tell and no spec does by itself: it comes of the files that the spec names, and of planning."""

    checkpoint: LaunchDocument | None
    kv_bytes_per_token: int
    memory: Mapping[Phase, Memory]  # of one rank; of phases whose memory is planned
    expert_maps: Mapping[Phase, LaunchDocument]
    first_moe_layer: int  # the model's number of the layer of a map's first row
    model_type: str  # of the checkpoint's config.json
    brings_code: bool  # whether other engines run code of the checkpoint
    is_runnable: bool
    other_method: str | None = None  # of its quantisation, where it is not the usual one of its precision


def launch_documents(
    spec: ResolvedSpec,
    placement: Placement,
    maps: Mapping[Phase, ExpertMap],
    memory: Mapping[Phase, Memory],
    *,
    is_runnable: bool,
) -> dict[str, LaunchDocument]:
    """File name -> document, units in order, then the gateway. `memory` is empty where nobody knows its size."""
    dtype = _kv_dtype(spec.written)
    known = Known(
        checkpoint=_checkpoint(spec),
        kv_bytes_per_token=spec.loaded_model.kv_bytes_per_token(KV_BYTES[dtype]),
        memory=memory,
        expert_maps={phase: _expert_map(each) for phase, each in maps.items()},
        first_moe_layer=spec.model.num_dense_layers,
        model_type=spec.model.model_type,
        brings_code=spec.model.brings_code,
        other_method=spec.model.quantisation.other_method,
        is_runnable=is_runnable,
    )
    return documents_for(spec.written, placement.units, known)


def documents_for(spec: Spec, units: Sequence[Unit], known: Known) -> dict[str, LaunchDocument]:
    """The same, as a plan's JSON has to have them too: `units` of `spec` that stand on their nodes."""
    spares = {
        phase: spares_with(spec.cluster, spec.gpu_name(phase), spec.kubernetes.tolerations) for phase in spec.phases
    }
    maps = {phase: _PhaseMap(_map_of(phase, spec, known)) for phase in spec.phases}
    documents = {
        names.launch_file(unit.name): _unit_document(spec, unit, spares[unit.phase], maps[unit.phase], known)
        for unit in units
    }
    return documents | {names.GATEWAY_LAUNCH_FILE: _gateway_document(spec, units, known)}


def unit_digest(document: LaunchDocument) -> str:
    """Digest what the ranks of a unit must share to join."""
    return _unit_digest(_texts(document))


def launch_digest(document: LaunchDocument) -> str:
    """Digest a document, but for this digest itself."""
    return _launch_digest(_texts(document))


def without_map(document: LaunchDocument) -> LaunchDocument:
    """Name the document's map by its digest alone: units of a phase share one, and a plan's JSON has it once."""
    if document["kind"] == "gateway" or document.get("expert_map") is None:
        return document
    named = {key: value for key, value in document["expert_map"].items() if key != "physical_to_logical"}
    return document | {"expert_map": named}


def with_map(document: LaunchDocument, maps: Mapping[str, Sequence[Sequence[int]]]) -> LaunchDocument:
    """Write out the map that `without_map` left out; `maps` are by digest."""
    if document["kind"] == "gateway" or document.get("expert_map") is None:
        return document
    named = document["expert_map"]
    return document | {"expert_map": named | {"physical_to_logical": maps[named["sha256"]]}}


class _PhaseMap:
    """A phase's expert map as launch files have it: all of a thousand units have the same."""

    def __init__(self, document: LaunchDocument | None) -> None:
        self.document = document
        self.text = canonical_json(document)


def _map_of(phase: Phase, spec: Spec, known: Known) -> LaunchDocument | None:
    """None where the engine reads no map."""
    if not ENGINES[spec.engine_name].reads_map:
        return None
    first = {} if spec.engine_name == OURS else {"first_layer": known.first_moe_layer}
    return known.expert_maps[phase] | first


def _unit_document(spec: Spec, unit: Unit, spares: Sequence[str], phase_map: _PhaseMap, known: Known) -> LaunchDocument:
    phase = spec.phase(unit.phase)
    shared = _shared_for_kv(spec, known)
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
        "limits": _limits(phase, phase, _kv_tokens(phase, unit.phase, known)),
    }
    document |= _for_ours(spec) if spec.engine_name == OURS else _for_engine(spec, unit, known)
    texts = _texts(document, phase_map.text)
    document["unit_digest"] = _unit_digest(texts)
    return document | {"launch_digest": _launch_digest(texts | _texts({"unit_digest": document["unit_digest"]}))}


def _for_ours(spec: Spec) -> LaunchDocument:
    """What only our runtime reads."""
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


def _for_engine(spec: Spec, unit: Unit, known: Known) -> LaunchDocument:
    """What another engine's pods are made from; a plan that it cannot run has no container."""
    told: LaunchDocument = {
        "kind": spec.engine_name,
        "engine": {"name": spec.engine_name, "version": spec.engine_version},
        "model_type": known.model_type,
        **({"brings_code": True} if known.brings_code else {}),
        **({} if known.other_method is None else {"quant_method": known.other_method}),
    }
    if known.is_runnable:
        assert spec.checkpoint is not None
        memory, max_requests = known.memory[unit.phase], spec.phase(unit.phase).max_requests
        in_kv = kv_bytes(memory.kv_tokens, memory.kv_bytes_per_token, max_requests * memory.kv_bytes_per_request)
        fraction = static_fraction(spec.engine_name, memory.weights_bytes, in_kv, memory.gpu_bytes)
        start_s, joined = _start_s(spec, unit, known), joins_nodes(spec, unit)
        more = (known.brings_code, joined, known.other_method)
        phased = Phased(spec.checkpoint, known.model_type, memory.kv_tokens, in_kv, fraction, start_s, *more)
        told["container"] = unit_container(spec, unit, phased).as_document()
    return told


def _start_s(spec: Spec, unit: Unit, known: Known) -> int:
    return start_budget_s(
        spec.kubernetes, spec.engine_name, known.memory[unit.phase].weights_bytes * unit.ranks_per_node
    )


def _unit_places(unit: Unit, spares: Sequence[str]) -> LaunchDocument:
    """Say where the unit's ranks are: each of its nodes is a place, which a spare may take with all its ranks."""
    ranks = [
        {"place": each.rank // unit.ranks_per_node, "local_rank": each.local_rank, "rank": each.rank}
        for each in unit.rank_places
    ]
    return {"ranks": ranks, "places": list(unit.nodes), "spares": list(spares)}


def _gateway_document(spec: Spec, units: Sequence[Unit], known: Known) -> LaunchDocument:
    first, last = (spec.phase(spec.phases[end]) for end in (0, -1))
    told: LaunchDocument = {}
    if spec.engine_name == OURS:
        told["tls"] = {"units": names.unit_identities(spec.kubernetes.namespace, spec.name)}
    else:
        told["engine"] = {"name": spec.engine_name, "version": spec.engine_version}
        if known.is_runnable:
            start_s = max(_start_s(spec, unit, known) for unit in units)
            told["container"] = gateway_container(spec, start_s).as_document()
    document = told | {
        "version": LAUNCH_VERSION,
        "kind": "gateway",
        "kv_digest": digest_of(_shared_for_kv(spec, known)),
        "model": _served_model(spec),
        "checkpoint": known.checkpoint,
        "limits": _limits(first, last, _kv_tokens(last, spec.phases[-1], known)),
        "max_queued_requests": spec.gateway.max_queued_requests,
        "stall_timeout_s": _stall_timeout_s(spec),
        "resume_timeout_s": ceil(spec.gateway.resume_timeout),
        "ports": {"http": spec.gateway.port, "registry": Ports.REGISTRY, "metrics": Ports.METRICS},
    }
    return document | {"launch_digest": launch_digest(document)}


def _stall_timeout_s(spec: Spec) -> int:
    """Return how long a step may take before the gateway gives its rank up. On a GPU the first one compiles kernels."""
    on_gpus = any(spec.device(phase) != "cpu" for phase in spec.phases)
    most = ceil(spec.kubernetes.stall_timeout)
    return most if on_gpus else min(most, CPU_STALL_S)


def _shared_for_kv(spec: Spec, known: Known) -> LaunchDocument:
    kv_cache = {
        "wire_version": KV_WIRE_VERSION,
        "dtype": _kv_dtype(spec),
        "bytes_per_token": known.kv_bytes_per_token,
    }
    return {"kv_cache": kv_cache, "model": _served_model(spec), "checkpoint": known.checkpoint}


def _kv_dtype(spec: Spec) -> KvDtype:
    """Return the type of all phases' KV; a rule makes them alike."""
    phase = spec.phase(spec.phases[-1])
    return kv_dtype(phase.precision, phase.kv_precision)


def _served_model(spec: Spec) -> LaunchDocument:
    return {"name": spec.served_model_name}


def _checkpoint(spec: ResolvedSpec) -> LaunchDocument | None:
    """None where there are no weights to run; such a plan is refused before its documents are written."""
    if spec.written.checkpoint is None:
        return None
    digests = {"config_digest": spec.config_digest, "weights_digest": spec.weights_digest}
    return {"uri": spec.written.checkpoint, **digests}


def _expert_map(expert_map: ExpertMap) -> LaunchDocument:
    return {
        "sha256": expert_map.sha256,
        "num_logical_experts": expert_map.num_logical_experts,
        "physical_to_logical": [list(layer) for layer in expert_map.physical_to_logical],
    }


def _limits(prefill: PhaseSpec, decode: PhaseSpec, kv_tokens: int) -> LaunchDocument:
    """Batches are made in prefill, requests stay in decode; both take requests of one size: a rule."""
    return {
        "max_requests": decode.max_requests,
        "max_request_tokens": decode.max_request_tokens,
        "max_batch_tokens": prefill.max_batch_tokens,
        "kv_tokens": kv_tokens,
    }


def _kv_tokens(spec: PhaseSpec, phase: Phase, known: Known) -> int:
    """Return a rank's KV tokens in whole pages: what fits or, if unknown, `max_requests` of full length."""
    if phase in known.memory:
        return known.memory[phase].kv_tokens
    most = spec.max_requests * in_pages(spec.max_request_tokens)
    return most if spec.max_kv_tokens is None else min(most, in_pages(spec.max_kv_tokens))


def _texts(document: LaunchDocument, map_text: str | None = None) -> dict[str, str]:
    """Return each value as canonical JSON; the map's is `map_text`, where somebody has it."""
    known = {} if map_text is None else {"expert_map": map_text}
    return {key: known[key] if key in known else canonical_json(value) for key, value in document.items()}


def _unit_digest(texts: Mapping[str, str]) -> str:
    return digest_of_texts({key: text for key, text in texts.items() if key not in NOT_IN_UNIT_DIGEST})


def _launch_digest(texts: Mapping[str, str]) -> str:
    return digest_of_texts({key: text for key, text in texts.items() if key != "launch_digest"})

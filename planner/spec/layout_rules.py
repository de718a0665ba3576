"""The rules between fields: what no field can know about itself.

Each rule is a pure function of the values it names, declared with their paths; the first is the value it is about.
It is asked only when all of them are right by themselves, so one mistake gives one message and does not hide the next.
`{phase}` in a path asks the rule once for each phase. `model.shapes`, `cluster.gpu`, ... are as
`check.py` resolved them: already read from the catalog or the files.

A rule does not repair, and does not ask whether the cluster is large enough: that is not a mistake in the spec but
infeasible, and `placement.py` says so.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, get_args

from planner.facts import names
from planner.facts.loads import Loads, row_without_load
from planner.facts.model import Model
from planner.facts.quantisation import KNOWN
from planner.facts.terms import PHASES, KvPrecision, Phase, Precision
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, nearest_of
from planner.spec import (
    attention_rules,
    cluster_rules,
    cost_rules,
    draft_rules,
    effect_rules,
    engine_rules,
    history_rules,
    kubernetes_rules,
    model_rules,
    overlay_rules,
    performance_rules,
    pod_rules,
    schedule_rules,
    volume_rules,
)
from planner.spec.object_names import DNS_1035
from planner.spec.phase import MAX_EP_SIZE
from planner.spec.precision import kv_dtype
from planner.spec.rule import Broken, Rule, declare_in, without_effect
from planner.spec.undecided import AUTO

__all__ = ["broken_rules"]


# With rules about other sections.
OTHERS = (
    *(model_rules, engine_rules, attention_rules, cluster_rules, schedule_rules, cost_rules),
    *(kubernetes_rules, volume_rules, pod_rules, overlay_rules),
    *(performance_rules, draft_rules, effect_rules, history_rules),
)
RULES: list[Rule] = []
_reads = declare_in(RULES)

Exchanged = Callable[[int], bool]  # whether the engine can exchange rows between so many GPUs


def broken_rules(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield every broken rule whose arguments are all in `values`."""
    for rule, paths in _all_readings():
        for broken in rule.verdicts(paths, values):
            yield _finding(broken, paths[0], values[paths[0]])


def _finding(broken: Broken, path: str, value: Any) -> Finding:
    if broken.path is not None:
        path, value = broken.path, broken.value
    return Finding(path, value, broken.rule, broken.reason, broken.fix)


@cache
def _all_readings() -> tuple[tuple[Rule, tuple[str, ...]], ...]:
    """Return every rule with the paths that it reads, for each phase where it is about phases."""
    rules = chain(RULES, *(each.RULES for each in OTHERS))
    return tuple((rule, paths) for rule in rules for paths in _readings(rule))


def _readings(rule: Rule) -> list[tuple[str, ...]]:
    if "{phase}" not in "".join(rule.reads):
        return [rule.reads]
    return [tuple(path.format(phase=phase) for path in rule.reads) for phase in PHASES]


# Names


@_reads("name")
def name_is_a_dns_label(name: str) -> Broken | None:
    """Units, Services and LeaderWorkerSets are named after it."""
    if DNS_1035.fullmatch(name):
        return None
    rule = "S401 must be lower-case letters, digits and hyphens, from a letter to a letter or digit (DNS-1035)"
    meant = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    fix = nearest(meant) if DNS_1035.fullmatch(meant) else for_example("name: chat")
    return Broken(rule, "Kubernetes objects are named after it", fix)


@_reads("name", "spec.units")
def unit_names_fit(name: str, num_units: Mapping[Phase, int]) -> Broken | None:
    """The longest name of a unit is that of the last one of a phase."""
    longest = max((names.unit_name(name, phase, number - 1) for phase, number in num_units.items()), key=len)
    room = names.MAX_UNIT_NAME - (len(longest) - len(name))
    if len(name) <= room:
        return None
    rule = f"S402 must have at most {room} characters, it has {len(name)}"
    reason = f"a LeaderWorkerSet's name has at most {names.MAX_UNIT_NAME}, {longest[len(name) :]} included"
    return Broken(rule, reason, "shorten it")


@_reads("gateway.port")
def ports_differ(port: int) -> Broken | None:
    """The gateway listens for clients, ranks and metrics on one address."""
    taken = {names.Ports.REGISTRY: "the ranks' registry", names.Ports.METRICS: "metrics"}
    if port not in taken:
        return None
    others = " and ".join(str(other) for other in taken)
    reason = f"the gateway listens there for {taken[port]}"
    return Broken(f"S405 must differ from {others}", reason, nearest(port + 1))


# Layout


@_reads(
    *("{phase}.ep_size", "{phase}.redundant_experts", "model.shapes"),
    *("cluster.gpus_per_node?", "{phase}.room?", "{phase}.exchanged?", "{phase}.as_written?"),
)
def ep_size_divides_physical_experts(
    ep_size: int,
    redundant: int,
    model: Model,
    gpus_per_node: int | None,
    room: int | None,
    exchanged: Exchanged | None,
    phase: Phase | None,
) -> Broken | None:
    """Every GPU of a unit holds equally many slots: the dispatch kernels count on it.

    The fix keeps the GPUs of a `phase` that someone wrote and changes its redundant experts. Where a unit cannot have
    so many GPUs, or nobody wrote the number, it changes the GPUs.
    """
    num_logical = model.num_routed_experts
    num_physical = num_logical + redundant
    if num_physical % ep_size == 0:
        return None
    rule = f"S501 must divide num_physical_experts ({num_physical} = {num_logical} + {redundant} redundant)"
    reason = "every GPU of a unit holds the same number of experts"
    is_kept = phase is not None and _is_whole_nodes(ep_size, gpus_per_node) and (not exchanged or exchanged(ep_size))
    numbers = _even_redundant(ep_size, redundant, num_logical) if is_kept else []
    if not numbers:
        return Broken(rule, reason, nearest_of(ep_size, _ep_sizes(num_physical, gpus_per_node, room, exchanged)))
    path = f"{phase}.redundant_experts"
    words = f"nearest: redundant_experts: {' or '.join(map(str, numbers))}"
    return Broken(rule, reason, Fix(words, tuple({path: number} for number in numbers)))


@_reads(
    *("{phase}.ep_size", "cluster.gpus_per_node", "{phase}.redundant_experts?"),
    *("model.shapes?", "{phase}.room?", "{phase}.exchanged?"),
)
def unit_fills_whole_nodes(
    ep_size: int,
    gpus_per_node: int,
    redundant: int | None,
    model: Model | None,
    room: int | None,
    exchanged: Exchanged | None,
) -> Broken | None:
    """Nodes are not shared between units, and ranks are spread evenly over a unit's nodes."""
    if _is_whole_nodes(ep_size, gpus_per_node):
        return None
    num_physical = None if redundant is None or model is None else model.num_routed_experts + redundant
    rule = f"S502 must be a multiple of gpus_per_node ({gpus_per_node}) or fit on one node"
    sizes = _ep_sizes(num_physical, gpus_per_node, room, exchanged)
    return Broken(rule, "units do not share nodes", nearest_of(ep_size, sizes))


@_reads("{phase}.redundant_experts", "{phase}.ep_size", "model.shapes")
def replicas_have_gpus_of_their_own(redundant: int, ep_size: int, model: Model) -> Broken | None:
    """Allow at most one replica of an expert on each GPU."""
    most = model.num_routed_experts * (ep_size - 1)
    if redundant <= most:
        return None
    rule = f"S503 must be at most {most} ({model.num_routed_experts} experts x {ep_size - 1} further GPUs)"
    return Broken(rule, "a second replica on the same GPU would share no load", nearest(most))


@_reads("{phase}.max_request_tokens", "model.shapes")
def requests_fit_the_model(max_request_tokens: int, model: Model) -> Broken | None:
    """Refuse requests beyond the model's positions, where it answers nonsense."""
    most = model.max_position_embeddings
    if max_request_tokens <= most:
        return None
    rule = f"S504 must be at most max_position_embeddings ({most})"
    return Broken(rule, "the model has no positions beyond these", nearest(most))


@_reads("{phase}.max_kv_tokens", "{phase}.max_request_tokens")
def kv_holds_a_request(max_kv_tokens: int | None, max_request_tokens: int) -> Broken | None:
    """Else a request could wait for ever."""
    if max_kv_tokens is None or max_kv_tokens >= max_request_tokens:
        return None
    rule = f"S517 must be at least max_request_tokens ({max_request_tokens})"
    return Broken(rule, "a request keeps all its KV in memory at once", nearest(max_request_tokens))


# Prefill and decode together


@_reads("spec.sections")
def phases_are_a_whole(sections: frozenset[str]) -> Broken | None:
    """Prompts are computed and tokens produced, somewhere, once."""
    given = [phase for phase in PHASES if phase in sections]
    if given in (["prefill", "decode"], ["mixed"]):
        return None
    if "mixed" in given:
        others = given[:-1]
        rule = f"S507 must not be combined with {' and '.join(others)}"
        fix = f"remove mixed, or {' and '.join(others)}"
        return Broken(rule, "a mixed unit does the work of both", fix, path="mixed")
    missing = "decode" if "prefill" in given else "prefill"
    rule = "S507 is required, unless mixed replaces prefill and decode"
    words = " and ".join(f"{phase}: {{ep_size: {AUTO}}}" for phase in PHASES[:2] if phase not in given)
    return Broken(rule, "a request passes through both", for_example(words), path=missing)


@_reads("decode.max_request_tokens", "prefill.max_request_tokens", "decode.given", "prefill.given", "model.shapes?")
def phases_take_equal_requests(
    decode: int, prefill: int, of_decode: frozenset[str], of_prefill: frozenset[str], model: Model | None
) -> Broken | None:
    """A request that prefill takes must fit where it goes on. A number that somebody wrote wins over a default.

    Of two written numbers the smaller is offered first, since it fits wherever the larger one does.
    """
    decode_path, reason = "decode.max_request_tokens", "every request passes through both phases"
    if decode == prefill:
        return None
    if "max_request_tokens" not in of_decode:
        rule = f"S505 is {decode} unless given, and must equal prefill.max_request_tokens ({prefill})"
        held = min(prefill, model.max_position_embeddings) if model else prefill
        as_held = {decode_path: held} | ({} if held == prefill else {"prefill.max_request_tokens": held})
        return Broken(rule, reason, Fix(f"write {decode_path}: {held}", (as_held,)), decode_path)
    most = min(decode, model.max_position_embeddings) if model else decode
    words = f"write prefill.max_request_tokens: {most}"
    as_decode = {"prefill.max_request_tokens": most} | ({} if most == decode else {HERE: most})
    default = "" if "max_request_tokens" in of_prefill else ", its default"
    as_prefill = nearest(prefill)
    if default:
        fix = Fix(words, (as_decode,))
    elif decode < prefill:
        fix = Fix(f"{words}, or {decode_path}: {prefill}", (as_decode, *as_prefill.changes))
    else:
        fix = Fix(f"{as_prefill}, or {words}", (*as_prefill.changes, as_decode))
    rule = f"S505 must equal prefill.max_request_tokens ({prefill}{default})"
    return Broken(rule, reason, fix)


@_reads("decode.precision", "prefill.precision", "decode.kv_precision", "prefill.kv_precision")
def phases_exchange_kv(
    decode: Precision, prefill: Precision, decode_kv: KvPrecision | None, prefill_kv: KvPrecision | None
) -> Broken | None:
    """KV travels as it lies in memory: no conversion on the way."""
    kept, sent = kv_dtype(decode, decode_kv), kv_dtype(prefill, prefill_kv)
    if kept == sent:
        return None
    rule = f"S506 must keep KV in the same precision as prefill ({sent}), not {kept}"
    if not (decode_kv or prefill_kv):
        return Broken(
            rule,
            f"prefill.precision is {prefill}, and prefill sends KV to decode without converting it",
            nearest(prefill),
        )
    alike = [each for each in dict.fromkeys((decode_kv, prefill_kv, kept, sent)) if each in get_args(KvPrecision)]
    changes = tuple({"decode.kv_precision": each, "prefill.kv_precision": each} for each in alike)
    fix = Fix(f"write kv_precision: {' or '.join(map(str, alike))} in both", changes)
    return Broken(rule, "prefill sends KV to decode without converting it", fix, "decode.kv_precision", decode_kv)


@_reads("{phase}.precision", "model.other_quantization", "{phase}.given", "{phase}.as_written")
def precision_is_known(_: Precision, quantization: str | None, given: frozenset[str], phase: Phase) -> Broken | None:
    """Weights that are quantised otherwise have another size than BF16, which is the default."""
    if quantization is None or "precision" in given:
        return None
    rule = f"S312 is required because tidemill does not know what the checkpoint's weights are in ({quantization})"
    reason = f"it knows {', '.join(each.words for each in KNOWN)}"
    fix = "write the precision to plan with: tidemill then assumes that the weights are in it"
    return Broken(rule, reason, fix, f"{phase}.precision")


@_reads("{phase}.precision", "model.shapes", "model.config", "{phase}.given")
def precision_is_the_checkpoints(
    precision: Precision, model: Model, config: str | None, given: frozenset[str]
) -> Broken | None:
    """FP8 in blocks and BF16 are made of each other while weights are loaded. Nothing makes others of other forms."""
    own = model.quantisation
    is_widened = own.precision == "fp8" and own.other_method is None and precision in ("fp8", "bf16", "fp32")
    if config is None or "precision" not in given or own.precision in ("bf16", precision) or is_widened:
        return None
    rule = f"S315 must be {own.precision}: the checkpoint is in {own.words}"
    return Broken(rule, "no engine makes weights of another format from these", nearest(own.precision))


# Expert load


@_reads("expert_load.file", "expert_load.given")
def loads_have_one_origin(file: str | None, given: frozenset[str]) -> Iterator[Broken]:
    """Measured or drawn, not both."""
    for key in sorted(given & {"alpha", "seed"}) if file is not None else ():
        reason = "with measured loads, nothing is drawn at random"
        yield without_effect("with expert_load.file", reason, f"expert_load.{key}")


@_reads("expert_load.file", "expert_load.loads", "model.shapes")
def loads_match_the_model(_: str, loads: Loads, model: Model) -> Broken | None:
    """One row an MoE layer, one column a logical expert."""
    wanted = (model.num_moe_layers, model.num_routed_experts)
    found = (len(loads), len(loads[0]))
    if found == wanted:
        return None
    rule = (
        f"S602 must have shape [{wanted[0]}][{wanted[1]}] (MoE layers, routed experts), it has [{found[0]}][{found[1]}]"
    )
    reason = "every expert of every layer needs its own load"
    if found == (model.num_layers, wanted[1]):
        loaded = next(index for index, row in enumerate(loads) if any(row))
        reason = f"the model's first {model.num_dense_layers} layers are dense, and row {loaded} has load"
    return Broken(rule, reason, "measure the loads on this model")


@_reads("expert_load.file", "expert_load.loads", "model.shapes")
def every_layer_was_recorded(_: str, loads: Loads, model: Model) -> Broken | None:
    """Every token goes to some expert of every MoE layer."""
    if len(loads) != model.num_moe_layers or (row := row_without_load(loads)) is None:
        return None
    rule = f"S606 must have load in every MoE layer, and the model's layer {model.num_dense_layers + row} has none"
    return Broken(
        rule, "a layer to which nothing was routed was not recorded", "record the loads again, in every layer"
    )


def _is_whole_nodes(ep_size: int, gpus_per_node: int | None) -> bool:
    """Whether a unit fills its nodes, or fits on one; True where nobody knows what a node has."""
    return gpus_per_node is None or ep_size <= gpus_per_node or ep_size % gpus_per_node == 0


def _even_redundant(ep_size: int, redundant: int, num_logical: int) -> list[int]:
    """Return the redundant experts on both sides that fill all GPUs evenly; none that add a replica for every expert.

    The nearest comes first, but 0 last: who wrote a number wants replicas.
    """
    above = redundant + -(num_logical + redundant) % ep_size
    even = [number for number in (above - ep_size, above) if 0 <= number < redundant + num_logical]
    return sorted(even, key=lambda number: (number == 0, abs(number - redundant), -number))


def _ep_sizes(
    num_physical: int | None, gpus_per_node: int | None, room: int | None, exchanged: Exchanged | None
) -> list[int]:
    """Sizes that spread experts evenly over whole nodes, within the `room` that there is.

    Where one of them can be `exchanged` between by the spec's engine, only such sizes. Every size spreads a number of
    experts that nobody knows.
    """
    even = [
        size
        for size in range(1, min(num_physical or MAX_EP_SIZE, MAX_EP_SIZE) + 1)
        if (num_physical or 0) % size == 0 and (not gpus_per_node or size <= gpus_per_node or size % gpus_per_node == 0)
    ]
    taken = [size for size in even if exchanged is None or exchanged(size)] or even
    return [size for size in taken if room is None or size <= room] or taken

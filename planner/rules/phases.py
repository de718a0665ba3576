"""Rules about `prefill`, `decode` and `mixed`: sizes of units, and values that prefill and decode must share."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import get_args

from planner.facts.model import Model
from planner.facts.quantisation import KNOWN, kv_dtype
from planner.facts.quantities import counted
from planner.facts.terms import PHASES, KvPrecision, Phase, Precision
from planner.layout.memory import USUAL_SHARE, MemoryPlan, memory_of, round_up_to_pages
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, nearest_of
from planner.rules.rule import Candidate, Rule
from planner.rules.valid_values import ValidValues
from planner.spec.phase import MAX_EP_SIZE, PhaseSpec
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

SizeTest = Callable[[int], bool]  # whether the engine's exchange supports this number of GPUs


def ep_size_divides_physical_experts(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject an EP size that does not divide the physical experts: dispatch kernels need equal slots on all GPUs.

    The fix keeps the EP size and changes the redundant experts. If no unit can have that EP size, or the planner chose
    it, the fix changes the EP size.
    """
    ep_size: int = c[f"{phase}.ep_size"]
    redundant: int = c[f"{phase}.redundant_experts"]
    num_logical = c.model.num_routed_experts
    num_physical = num_logical + redundant
    if num_physical % ep_size == 0:
        return
    gpus_per_node: int | None = c.get("cluster.gpus_per_node")
    supports = c.exchange_test(phase)
    rule = f"S501 must divide num_physical_experts ({num_physical} = {num_logical} + {redundant} redundant)"
    reason = "every GPU of a unit holds the same number of experts"
    is_kept = c.is_written and _fills_whole_nodes(ep_size, gpus_per_node) and (not supports or supports(ep_size))
    numbers = _even_redundant_experts(ep_size, redundant, num_logical) if is_kept else []
    if not numbers:
        fix = nearest_of(ep_size, _allowed_ep_sizes(num_physical, gpus_per_node, c.gpus_per_unit(phase), supports))
        yield Finding(f"{phase}.ep_size", ep_size, rule, reason, fix)
        return
    path = f"{phase}.redundant_experts"
    words = f"nearest: redundant_experts: {' or '.join(map(str, numbers))}"
    yield Finding(f"{phase}.ep_size", ep_size, rule, reason, Fix(words, tuple({path: number} for number in numbers)))


def unit_fills_whole_nodes(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject units larger than a node that do not fill whole nodes: units share no nodes."""
    ep_size: int = c[f"{phase}.ep_size"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    if _fills_whole_nodes(ep_size, gpus_per_node):
        return
    redundant: int | None = c.get(f"{phase}.redundant_experts")
    model: Model | None = c.get("model.shapes")
    num_physical = None if redundant is None or model is None else model.num_routed_experts + redundant
    rule = f"S502 must be a multiple of gpus_per_node ({gpus_per_node}) or fit on one node"
    sizes = _allowed_ep_sizes(num_physical, gpus_per_node, c.gpus_per_unit(phase), c.exchange_test(phase))
    yield Finding(f"{phase}.ep_size", ep_size, rule, "units do not share nodes", nearest_of(ep_size, sizes))


def replicas_are_on_different_gpus(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject a number of redundant experts with which some GPU would hold two replicas of one expert."""
    redundant: int = c[f"{phase}.redundant_experts"]
    ep_size: int = c[f"{phase}.ep_size"]
    model = c.model
    most = model.num_routed_experts * (ep_size - 1)
    if redundant <= most:
        return
    rule = f"S504 must be at most {most} ({model.num_routed_experts} experts x {ep_size - 1} further GPUs)"
    reason = "a second replica on the same GPU would share no load"
    yield Finding(f"{phase}.redundant_experts", redundant, rule, reason, nearest(most))


def requests_fit_model(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject a `max_request_tokens` above the model's `max_position_embeddings`: answers beyond it are nonsense."""
    max_request_tokens: int = c[f"{phase}.max_request_tokens"]
    model = c.model
    most = model.max_position_embeddings
    if max_request_tokens <= most:
        return
    rule = f"S504 must be at most max_position_embeddings ({most})"
    reason = "the model has no positions beyond these"
    yield Finding(f"{phase}.max_request_tokens", max_request_tokens, rule, reason, nearest(most))


def kv_holds_a_request(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject `max_kv_tokens` below `max_request_tokens`: a long request would wait for ever."""
    max_kv_tokens: int | None = c[f"{phase}.max_kv_tokens"]
    max_request_tokens: int = c[f"{phase}.max_request_tokens"]
    if max_kv_tokens is None or max_kv_tokens >= max_request_tokens:
        return
    rule = f"S504 must be at least max_request_tokens ({max_request_tokens})"
    reason = "a request keeps all its KV in memory at once"
    yield Finding(f"{phase}.max_kv_tokens", max_kv_tokens, rule, reason, nearest(max_request_tokens))


def phases_are_complete(c: ValidValues) -> Iterator[Finding]:
    """Require prefill together with decode, or mixed alone."""
    given = [phase for phase in PHASES if phase in c.sections]
    if given in (["prefill", "decode"], ["mixed"]):
        return
    if "mixed" in given:
        others = given[:-1]
        rule = f"S507 must not be combined with {' and '.join(others)}"
        fix = f"remove mixed, or {' and '.join(others)}"
        yield Finding("mixed", None, rule, "a mixed unit does the work of both", fix)
        return
    missing = "decode" if "prefill" in given else "prefill"
    rule = "S507 is required, unless mixed replaces prefill and decode"
    words = " and ".join(f"{phase}: {{ep_size: {AUTO}}}" for phase in PHASES[:2] if phase not in given)
    yield Finding(missing, None, rule, "a request passes through both", for_example(words))


def phases_take_equal_requests(c: ValidValues) -> Iterator[Finding]:
    """Reject different `max_request_tokens` in prefill and decode: every request passes through both.

    The fix is the smallest number that the user wrote: nobody chose a default, and a lower limit always fits.
    """
    decode: int = c["decode.max_request_tokens"]
    prefill: int = c["prefill.max_request_tokens"]
    model: Model | None = c.get("model.shapes")
    if decode == prefill:
        return
    numbers = {"prefill.max_request_tokens": prefill, "decode.max_request_tokens": decode}
    written = [number for path, number in numbers.items() if c.is_given(path)]
    least = min([*written, model.max_position_embeddings] if model else written)
    rule = f"S505 must equal prefill.max_request_tokens ({prefill})"
    fix = Fix(f"write max_request_tokens: {least} in both", (dict.fromkeys(numbers, least),))
    yield Finding("decode.max_request_tokens", decode, rule, "every request passes through both phases", fix)


def phases_share_kv_precision(c: ValidValues) -> Iterator[Finding]:
    """Reject different KV precisions in prefill and decode: KV is sent without conversion."""
    decode: Precision = c["decode.precision"]
    prefill: Precision = c["prefill.precision"]
    decode_kv: KvPrecision | None = c["decode.kv_precision"]
    prefill_kv: KvPrecision | None = c["prefill.kv_precision"]
    kept, sent = kv_dtype(decode, decode_kv), kv_dtype(prefill, prefill_kv)
    if kept == sent:
        return
    rule = f"S506 must keep KV in the same precision as prefill ({sent}), not {kept}"
    if not (decode_kv or prefill_kv):
        reason = f"prefill.precision is {prefill}, and prefill sends KV to decode without converting it"
        yield Finding("decode.precision", decode, rule, reason, nearest(prefill))
        return
    alike = [each for each in dict.fromkeys((decode_kv, prefill_kv, kept, sent)) if each in get_args(KvPrecision)]
    changes = tuple({"decode.kv_precision": each, "prefill.kv_precision": each} for each in alike)
    fix = Fix(f"write kv_precision: {' or '.join(map(str, alike))} in both", changes)
    yield Finding("decode.kv_precision", decode_kv, rule, "prefill sends KV to decode without converting it", fix)


def precision_is_known(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Require a precision if the checkpoint's format is unknown: the default BF16 would have the wrong size."""
    c.require(f"{phase}.precision")
    quantization: str | None = c["model.other_quantization"]
    if not c.is_written or quantization is None or c.is_given(f"{phase}.precision"):
        return
    rule = f"S312 is required because tidemill does not know what the checkpoint's weights are in ({quantization})"
    reason = f"it knows {', '.join(each.words for each in KNOWN)}"
    fix = "write the precision to plan with: tidemill then assumes that the weights are in it"
    yield Finding(f"{phase}.precision", None, rule, reason, fix)


def precision_matches_checkpoint(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject precisions that cannot be made from the checkpoint's weights.

    Loading can widen FP8 in blocks to BF16 or FP32. With a BF16 checkpoint this rule accepts every precision.
    """
    precision: Precision = c[f"{phase}.precision"]
    model = c.model
    config: str | None = c["model.config"]
    own = model.quantisation
    is_widened = own.precision == "fp8" and own.other_method is None and precision in ("fp8", "bf16", "fp32")
    if config is None or not c.is_given(f"{phase}.precision") or own.precision in ("bf16", precision) or is_widened:
        return
    rule = f"S315 must be {own.precision}: the checkpoint is in {own.words}"
    reason = "no engine makes weights of another format from these"
    yield Finding(f"{phase}.precision", precision, rule, reason, nearest(own.precision))


def drafts_need_mtp_module(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject `draft_tokens` for a model without an MTP module of known shape. Another rule covers prefill."""
    draft_tokens: int = c[f"{phase}.draft_tokens"]
    model = c.model
    if draft_tokens == 0 or phase == "prefill" or model.draft_layer is not None:
        return
    has = "the model has none"
    if model.num_mtp_layers:
        has = f"the shape of the model's {model.num_mtp_layers} MTP modules is not known"
    reason = f"an MTP module makes the drafts, and {has}"
    yield Finding(f"{phase}.draft_tokens", draft_tokens, f"S555 must be 0 for {model.model_type}", reason, nearest(0))


def max_requests_fit_kv(c: Candidate) -> Iterator[Finding]:
    """Warn of a `max_requests` that KV memory cannot hold even if requests have an eighth of their full length.

    Prefill is left out: it computes one request at a time.
    """
    spec = c.resolved
    for plan in c.memory:
        section = spec.phase(plan.phase)
        if plan.phase == "prefill" or _fits_kv(plan, section):
            continue
        full = counted(plan.full_requests, "request")
        length = f"{plan.max_request_tokens:,} tokens"
        rule = f"W101 is more than memory holds: there is KV for {full} of full length ({length})"
        mean = plan.kv_tokens // section.max_requests
        reason = f"with so many at once, each has KV for {mean:,} tokens on average, and some wait or are preempted"
        held = _max_fitting_requests(spec, plan.phase)
        share = f"1/{1 / USUAL_SHARE:.0f} of full length"
        fix = Fix(f"nearest: {held}, so that each has KV for {share}", ({HERE: held},))
        yield Finding(f"{plan.phase}.max_requests", section.max_requests, rule, reason, fix)


def _fills_whole_nodes(ep_size: int, gpus_per_node: int | None) -> bool:
    """Return whether a unit fills whole nodes or fits on one node; True if the number of GPUs of a node is unknown."""
    return gpus_per_node is None or ep_size <= gpus_per_node or ep_size % gpus_per_node == 0


def _even_redundant_experts(ep_size: int, redundant: int, num_logical: int) -> list[int]:
    """Return the nearest lower and higher numbers of redundant experts that give all GPUs equally many slots.

    A number that adds one replica or more of every expert is left out. The nearest comes first, but 0 comes last: a
    user who wrote a number wants redundant experts.
    """
    above = redundant + -(num_logical + redundant) % ep_size
    even = [number for number in (above - ep_size, above) if 0 <= number < redundant + num_logical]
    return sorted(even, key=lambda number: (number == 0, abs(number - redundant), -number))


def _allowed_ep_sizes(
    num_physical: int | None, gpus_per_node: int | None, room: int | None, supports: SizeTest | None
) -> list[int]:
    """Return the EP sizes, up to `room` GPUs, that divide `num_physical` experts and fit on a node or fill nodes.

    Sizes that the engine's exchange `supports` are returned alone, if there are any. If the number of experts is
    unknown, any size is assumed to divide it.
    """
    even = [
        size
        for size in range(1, min(num_physical or MAX_EP_SIZE, MAX_EP_SIZE) + 1)
        if (num_physical or 0) % size == 0 and (not gpus_per_node or size <= gpus_per_node or size % gpus_per_node == 0)
    ]
    taken = [size for size in even if supports is None or supports(size)] or even
    return [size for size in taken if room is None or size <= room] or taken


def _fits_kv(plan: MemoryPlan, section: PhaseSpec) -> bool:
    """Return whether KV memory holds `max_requests` requests at `USUAL_SHARE` of full length.

    KV memory never needs to hold more than `max_kv_tokens`, if the spec gives that.
    """
    usual = USUAL_SHARE * section.max_requests * round_up_to_pages(plan.max_request_tokens)
    return plan.kv_tokens >= min(usual, section.max_kv_tokens or usual)


def _max_fitting_requests(spec: ResolvedSpec, phase: Phase) -> int:
    """Return the highest `max_requests` whose KV at `USUAL_SHARE` of full length fits beside the requests' buffers."""

    def is_too_much(max_requests: int) -> bool:
        tried = spec.with_numbers(phase, {"max_requests": max_requests})
        plan = memory_of(tried, phase)
        return plan is not None and not _fits_kv(plan, tried.phase(phase))

    return bisect_left(range(1, spec.phase(phase).max_requests), True, key=is_too_much)


RULES = (
    Rule("S501", "resolved", ep_size_divides_physical_experts, PHASES),
    Rule("S502", "resolved", unit_fills_whole_nodes, PHASES),
    Rule("S504", "resolved", replicas_are_on_different_gpus, PHASES),
    Rule("S504", "resolved", requests_fit_model, PHASES),
    Rule("S504", "fields", kv_holds_a_request, PHASES),
    Rule("S507", "fields", phases_are_complete),
    Rule("S505", "resolved", phases_take_equal_requests),
    Rule("S506", "fields", phases_share_kv_precision),
    Rule("S312", "resolved", precision_is_known, PHASES),
    Rule("S315", "resolved", precision_matches_checkpoint, PHASES),
    Rule("S555", "resolved", drafts_need_mtp_module, PHASES),
    Rule("W101", "laid out", max_requests_fit_kv),
)

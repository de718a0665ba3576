"""The rules of `prefill`, `decode` and `mixed`: their sizes, and what they must have in common."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import get_args

from planner.facts.model import Model
from planner.facts.quantisation import KNOWN
from planner.facts.quantities import counted
from planner.facts.terms import PHASES, KvPrecision, Phase, Precision
from planner.layout.memory import USUAL_SHARE, MemoryPlan, in_pages, memory_of
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, nearest_of
from planner.rules.rule import Candidate, Rule, without_effect
from planner.rules.written import Written
from planner.spec.phase import MAX_EP_SIZE, PhaseSpec
from planner.spec.precision import kv_dtype
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import AUTO

__all__ = ["RULES"]

Exchanged = Callable[[int], bool]  # whether the engine can exchange rows between so many GPUs


def ep_size_divides_physical_experts(c: Written, phase: Phase) -> Iterator[Finding]:
    """Every GPU of a unit holds equally many slots: the dispatch kernels count on it.

    The fix keeps the GPUs of a `phase` that someone wrote and changes its redundant experts. Where a unit cannot have
    so many GPUs, or nobody wrote the number, it changes the GPUs.
    """
    ep_size: int = c[f"{phase}.ep_size"]
    redundant: int = c[f"{phase}.redundant_experts"]
    num_logical = c.model.num_routed_experts
    num_physical = num_logical + redundant
    if num_physical % ep_size == 0:
        return
    gpus_per_node: int | None = c.get("cluster.gpus_per_node")
    exchanged = c.exchanges(phase)
    rule = f"S501 must divide num_physical_experts ({num_physical} = {num_logical} + {redundant} redundant)"
    reason = "every GPU of a unit holds the same number of experts"
    is_kept = c.is_written and _is_whole_nodes(ep_size, gpus_per_node) and (not exchanged or exchanged(ep_size))
    numbers = _even_redundant(ep_size, redundant, num_logical) if is_kept else []
    if not numbers:
        fix = nearest_of(ep_size, _ep_sizes(num_physical, gpus_per_node, c.room(phase), exchanged))
        yield Finding(f"{phase}.ep_size", ep_size, rule, reason, fix)
        return
    path = f"{phase}.redundant_experts"
    words = f"nearest: redundant_experts: {' or '.join(map(str, numbers))}"
    yield Finding(f"{phase}.ep_size", ep_size, rule, reason, Fix(words, tuple({path: number} for number in numbers)))


def unit_fills_whole_nodes(c: Written, phase: Phase) -> Iterator[Finding]:
    """Nodes are not shared between units, and ranks are spread evenly over a unit's nodes."""
    ep_size: int = c[f"{phase}.ep_size"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    if _is_whole_nodes(ep_size, gpus_per_node):
        return
    redundant: int | None = c.get(f"{phase}.redundant_experts")
    model: Model | None = c.get("model.shapes")
    num_physical = None if redundant is None or model is None else model.num_routed_experts + redundant
    rule = f"S502 must be a multiple of gpus_per_node ({gpus_per_node}) or fit on one node"
    sizes = _ep_sizes(num_physical, gpus_per_node, c.room(phase), c.exchanges(phase))
    yield Finding(f"{phase}.ep_size", ep_size, rule, "units do not share nodes", nearest_of(ep_size, sizes))


def replicas_have_gpus_of_their_own(c: Written, phase: Phase) -> Iterator[Finding]:
    """Allow at most one replica of an expert on each GPU."""
    redundant: int = c[f"{phase}.redundant_experts"]
    ep_size: int = c[f"{phase}.ep_size"]
    model = c.model
    most = model.num_routed_experts * (ep_size - 1)
    if redundant <= most:
        return
    rule = f"S504 must be at most {most} ({model.num_routed_experts} experts x {ep_size - 1} further GPUs)"
    reason = "a second replica on the same GPU would share no load"
    yield Finding(f"{phase}.redundant_experts", redundant, rule, reason, nearest(most))


def requests_fit_the_model(c: Written, phase: Phase) -> Iterator[Finding]:
    """Refuse requests beyond the model's positions, where it answers nonsense."""
    max_request_tokens: int = c[f"{phase}.max_request_tokens"]
    model = c.model
    most = model.max_position_embeddings
    if max_request_tokens <= most:
        return
    rule = f"S504 must be at most max_position_embeddings ({most})"
    reason = "the model has no positions beyond these"
    yield Finding(f"{phase}.max_request_tokens", max_request_tokens, rule, reason, nearest(most))


def kv_holds_a_request(c: Written, phase: Phase) -> Iterator[Finding]:
    """Else a request could wait for ever."""
    max_kv_tokens: int | None = c[f"{phase}.max_kv_tokens"]
    max_request_tokens: int = c[f"{phase}.max_request_tokens"]
    if max_kv_tokens is None or max_kv_tokens >= max_request_tokens:
        return
    rule = f"S504 must be at least max_request_tokens ({max_request_tokens})"
    reason = "a request keeps all its KV in memory at once"
    yield Finding(f"{phase}.max_kv_tokens", max_kv_tokens, rule, reason, nearest(max_request_tokens))


def phases_are_a_whole(c: Written) -> Iterator[Finding]:
    """Prompts are computed and tokens produced, somewhere, once."""
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


def phases_take_equal_requests(c: Written) -> Iterator[Finding]:
    """A request that prefill takes must fit where it goes on. A number that somebody wrote wins over a default.

    Of two written numbers the smaller is offered first, since it fits wherever the larger one does.
    """
    decode: int = c["decode.max_request_tokens"]
    prefill: int = c["prefill.max_request_tokens"]
    model: Model | None = c.get("model.shapes")
    decode_path, reason = "decode.max_request_tokens", "every request passes through both phases"
    if decode == prefill:
        return
    if not c.gives("decode.max_request_tokens"):
        rule = f"S505 is {decode} unless given, and must equal prefill.max_request_tokens ({prefill})"
        held = min(prefill, model.max_position_embeddings) if model else prefill
        as_held = {decode_path: held} | ({} if held == prefill else {"prefill.max_request_tokens": held})
        yield Finding(decode_path, None, rule, reason, Fix(f"write {decode_path}: {held}", (as_held,)))
        return
    most = min(decode, model.max_position_embeddings) if model else decode
    words = f"write prefill.max_request_tokens: {most}"
    as_decode = {"prefill.max_request_tokens": most} | ({} if most == decode else {HERE: most})
    default = "" if c.gives("prefill.max_request_tokens") else ", its default"
    as_prefill = nearest(prefill)
    if default:
        fix = Fix(words, (as_decode,))
    elif decode < prefill:
        fix = Fix(f"{words}, or {decode_path}: {prefill}", (as_decode, *as_prefill.changes))
    else:
        fix = Fix(f"{as_prefill}, or {words}", (*as_prefill.changes, as_decode))
    rule = f"S505 must equal prefill.max_request_tokens ({prefill}{default})"
    yield Finding("decode.max_request_tokens", decode, rule, reason, fix)


def phases_exchange_kv(c: Written) -> Iterator[Finding]:
    """KV travels as it lies in memory: no conversion on the way."""
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


def precision_is_known(c: Written, phase: Phase) -> Iterator[Finding]:
    """Weights that are quantised otherwise have another size than BF16, which is the default."""
    c.require(f"{phase}.precision")
    quantization: str | None = c["model.other_quantization"]
    if not c.is_written or quantization is None or c.gives(f"{phase}.precision"):
        return
    rule = f"S312 is required because tidemill does not know what the checkpoint's weights are in ({quantization})"
    reason = f"it knows {', '.join(each.words for each in KNOWN)}"
    fix = "write the precision to plan with: tidemill then assumes that the weights are in it"
    yield Finding(f"{phase}.precision", None, rule, reason, fix)


def precision_is_the_checkpoints(c: Written, phase: Phase) -> Iterator[Finding]:
    """FP8 in blocks and BF16 are made of each other while weights are loaded. Nothing makes others of other forms."""
    precision: Precision = c[f"{phase}.precision"]
    model = c.model
    config: str | None = c["model.config"]
    own = model.quantisation
    is_widened = own.precision == "fp8" and own.other_method is None and precision in ("fp8", "bf16", "fp32")
    if config is None or not c.gives(f"{phase}.precision") or own.precision in ("bf16", precision) or is_widened:
        return
    rule = f"S315 must be {own.precision}: the checkpoint is in {own.words}"
    reason = "no engine makes weights of another format from these"
    yield Finding(f"{phase}.precision", precision, rule, reason, nearest(own.precision))


def prefill_drafts_nothing(c: Written) -> Iterator[Finding]:
    """A step of prefill computes prompts, whose tokens are known."""
    draft_tokens: int = c["prefill.draft_tokens"]
    if draft_tokens:
        reason = "only decode drafts tokens, and decode.draft_tokens makes prefill load the MTP module too"
        yield without_effect("in prefill", reason, "prefill.draft_tokens", draft_tokens)


def a_module_drafts(c: Written, phase: Phase) -> Iterator[Finding]:
    """Not all models have an MTP module, and another rule says it of prefill."""
    draft_tokens: int = c[f"{phase}.draft_tokens"]
    model = c.model
    if draft_tokens == 0 or phase == "prefill" or model.draft_layer is not None:
        return
    has = "the model has none"
    if model.num_mtp_layers:
        has = f"the shape of the model's {model.num_mtp_layers} MTP modules is not known"
    reason = f"an MTP module makes the drafts, and {has}"
    yield Finding(f"{phase}.draft_tokens", draft_tokens, f"S555 must be 0 for {model.model_type}", reason, nearest(0))


def requests_have_kv(c: Candidate) -> Iterator[Finding]:
    """Yield limits of requests that no GPU has KV for, however short most requests are.

    Prefill is left out: it computes one request at a time.
    """
    spec = c.resolved
    for plan in c.memory:
        section = spec.phase(plan.phase)
        if plan.phase == "prefill" or _is_held(plan, section):
            continue
        full = counted(plan.full_requests, "request")
        length = f"{plan.max_request_tokens:,} tokens"
        rule = f"W101 is more than memory holds: there is KV for {full} of full length ({length})"
        mean = plan.kv_tokens // section.max_requests
        reason = f"with so many at once, each has KV for {mean:,} tokens on average, and some wait or are preempted"
        held = _most_held(spec, plan.phase)
        share = f"1/{1 / USUAL_SHARE:.0f} of full length"
        fix = Fix(f"nearest: {held}, so that each has KV for {share}", ({HERE: held},))
        yield Finding(f"{plan.phase}.max_requests", section.max_requests, rule, reason, fix)


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


def _is_held(plan: MemoryPlan, section: PhaseSpec) -> bool:
    """Return whether there is KV for all requests at the usual share of full length, or for all that is asked for."""
    usual = USUAL_SHARE * section.max_requests * in_pages(plan.max_request_tokens)
    return plan.kv_tokens >= min(usual, section.max_kv_tokens or usual)


def _most_held(spec: ResolvedSpec, phase: Phase) -> int:
    """Return the most requests that KV holds, when their own buffers are taken off it."""

    def is_too_much(max_requests: int) -> bool:
        tried = spec.trying(phase, {"max_requests": max_requests})
        plan = memory_of(tried, phase)
        return plan is not None and not _is_held(plan, tried.phase(phase))

    return bisect_left(range(1, spec.phase(phase).max_requests), True, key=is_too_much)


RULES = (
    Rule("S501", "resolved", ep_size_divides_physical_experts, PHASES),
    Rule("S502", "resolved", unit_fills_whole_nodes, PHASES),
    Rule("S504", "resolved", replicas_have_gpus_of_their_own, PHASES),
    Rule("S504", "resolved", requests_fit_the_model, PHASES),
    Rule("S504", "fields", kv_holds_a_request, PHASES),
    Rule("S507", "fields", phases_are_a_whole),
    Rule("S505", "resolved", phases_take_equal_requests),
    Rule("S506", "fields", phases_exchange_kv),
    Rule("S312", "resolved", precision_is_known, PHASES),
    Rule("S315", "resolved", precision_is_the_checkpoints, PHASES),
    Rule("S560", "fields", prefill_drafts_nothing),
    Rule("S555", "resolved", a_module_drafts, PHASES),
    Rule("W101", "laid out", requests_have_kv),
)

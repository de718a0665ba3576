"""Rules about attention groups (GPUs that share attention), KV precision and the precision of core attention.

A group splits the heads evenly. Its size divides the GPUs of a node or is a multiple of them. Each rule offers only
sizes that the other rules accept too, as far as their fields are known.
"""

from collections.abc import Iterator

from planner.facts.model import Model
from planner.facts.quantisation import kv_dtype
from planner.facts.terms import PHASES, KvPrecision, Phase, Precision
from planner.problems.finding import Finding
from planner.problems.fix import Change, Fix, nearest_of, removal
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.phase import MAX_ATTENTION_TP


def attention_groups_align_with_nodes(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject an `attention_tp` that fits neither into a node evenly nor on whole nodes, or does not divide `ep_size`.

    An `attention_tp` that divides a node is accepted beside an `ep_size` that does not fill whole nodes: there
    `ep_size` is the mistake, and S502 reports it.
    """
    attention_tp: int = c[f"{phase}.attention_tp"]
    ep_size: int = c[f"{phase}.ep_size"]
    gpus_per_node: int = c["cluster.gpus_per_node"]
    is_unit_wrong = ep_size > gpus_per_node and ep_size % gpus_per_node != 0 and gpus_per_node % attention_tp == 0
    if _fills_nodes(attention_tp, gpus_per_node) and (ep_size % attention_tp == 0 or is_unit_wrong):
        return
    rule = f"S508 must divide ep_size ({ep_size}), and divide gpus_per_node ({gpus_per_node}) or be a multiple of it"
    reason = "GPUs that share attention fill an equal part of a node, or whole nodes"
    sizes = attention_sizes(ep_size, gpus_per_node, c.get("model.shapes"), c.largest_group)
    supports = c.exchange_test(phase)
    if supports and not supports(ep_size):  # only one group of all GPUs can run: it exchanges nothing
        sizes = [size for size in sizes if size == ep_size]
    another = f"write another ep_size first: the engine exchanges no rows between {ep_size} GPUs"
    fix = nearest_of(attention_tp, sizes) if sizes else another
    yield Finding(f"{phase}.attention_tp", attention_tp, rule, reason, fix)


def attention_splits_by_whole_heads(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject an `attention_tp` that would split a head between GPUs, or share KV heads unevenly."""
    attention_tp: int = c[f"{phase}.attention_tp"]
    model = c.model
    if _has_whole_heads(attention_tp, model):
        return
    heads, kv_heads = next(each for each in _head_counts(model) if not _are_whole(attention_tp, *each))
    kv = "" if kv_heads == heads else f", and divide the {kv_heads} KV heads or be a multiple of them"
    rule = f"S509 must divide the {heads} attention heads{kv}"
    sizes = attention_sizes(c.get(f"{phase}.ep_size"), c.get("cluster.gpus_per_node"), model, c.largest_group)
    reason = "GPUs that share attention split it by whole heads"
    yield Finding(f"{phase}.attention_tp", attention_tp, rule, reason, nearest_of(attention_tp, sizes))


def kv_precision_suits_kernels(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject a KV precision that the model's attention kernels do not support."""
    kv_precision: KvPrecision | None = c[f"{phase}.kv_precision"]
    precision: Precision = c[f"{phase}.precision"]
    model = c.model
    kept = kv_dtype(precision, kv_precision)
    if model.only_kv is None or kept == model.only_kv:
        return
    rule = f"S519 must be {model.only_kv} for {model.model_type}, it keeps {kept}"
    change = {f"{phase}.kv_precision": model.only_kv for phase in PHASES if phase in c.sections}
    fix = Fix(f"write kv_precision: {model.only_kv} in all phases", (change,))
    yield Finding(f"{phase}.kv_precision", kv_precision, rule, "kernels store its compressed KV in this form only", fix)


def core_attention_can_be_fp8(c: ValidValues, phase: Phase) -> Iterator[Finding]:
    """Reject core attention in FP8 over KV in another precision, or of another kind than latent attention."""
    if c[f"{phase}.attention_precision"] != "fp8":
        return
    path = f"{phase}.attention_precision"
    if not c.model.is_dense_latent:
        rule, reason = f"S520 must be bf16 for {c.model.model_type}", "only kernels of latent attention over all tokens"
        yield Finding(path, "fp8", rule, f"{reason} compute in FP8", removal(path, words="leave it out"))
    elif c[f"{phase}.kv_precision"] != "fp8":
        change: Change = {f"{each}.kv_precision": "fp8" for each in PHASES if each in c.sections}
        fix = Fix("write kv_precision: fp8 in all phases", (change,))
        yield Finding(path, "fp8", "S520 must be bf16, as KV is not in FP8", "kernels multiply queries with KV", fix)


def attention_sizes(
    ep_size: int | None, gpus_per_node: int | None, model: Model | None, largest: int | None = None
) -> list[int]:
    """Return the sizes of attention groups, ascending and up to `largest`, that suit a unit, nodes and heads.

    An argument that is None sets no limit, because its value is unknown or there is none.
    """
    return [
        size
        for size in range(1, min(MAX_ATTENTION_TP, largest or MAX_ATTENTION_TP) + 1)
        if (ep_size is None or ep_size % size == 0)
        and (gpus_per_node is None or _fills_nodes(size, gpus_per_node))
        and (model is None or _has_whole_heads(size, model))
    ]


def _fills_nodes(num_gpus: int, gpus_per_node: int) -> bool:
    """Return whether `num_gpus` divides the GPUs of a node, or is a multiple of their number."""
    return gpus_per_node % num_gpus == 0 or num_gpus % gpus_per_node == 0


def _has_whole_heads(num_gpus: int, model: Model) -> bool:
    return all(_are_whole(num_gpus, *each) for each in _head_counts(model))


def _are_whole(num_gpus: int, heads: int, kv_heads: int) -> bool:
    return heads % num_gpus == 0 and (kv_heads % num_gpus == 0 or num_gpus % kv_heads == 0)


def _head_counts(model: Model) -> list[tuple[int, int]]:
    """Return (attention heads, KV heads) of each kind of attention. Both are equal where KV has no heads, as in MLA."""
    return [(each.num_heads, each.num_kv_heads) for each in model.attentions]


RULES = (
    Rule("S508", "resolved", attention_groups_align_with_nodes, PHASES),
    Rule("S509", "resolved", attention_splits_by_whole_heads, PHASES),
    Rule("S519", "resolved", kv_precision_suits_kernels, PHASES),
    Rule("S520", "resolved", core_attention_can_be_fp8, PHASES),
)

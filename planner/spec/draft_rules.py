"""The rules of drafts: who makes them, and with what; `layout_rules.py` asks them with the others."""

from planner.facts.model import Model
from planner.facts.terms import Phase
from planner.problems.fix import nearest, removal
from planner.spec.rule import Broken, Rule, declare_in

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("prefill.draft_tokens")
def prefill_drafts_nothing(draft_tokens: int) -> Broken | None:
    """A step of prefill computes prompts, whose tokens are known."""
    if draft_tokens == 0:
        return None
    rule, reason = (
        "S554 must be 0 in prefill",
        "only decode drafts tokens, and decode.draft_tokens makes prefill load the MTP module too",
    )
    return Broken(rule, reason, removal())


@_reads("{phase}.draft_tokens", "model.shapes", "{phase}.name")
def a_module_drafts(draft_tokens: int, model: Model, phase: Phase) -> Broken | None:
    """Not all models have an MTP module, and S554 says it of prefill."""
    if draft_tokens == 0 or phase == "prefill" or model.draft_layer is not None:
        return None
    has = "the model has none"
    if model.num_mtp_layers:
        has = f"the shape of the model's {model.num_mtp_layers} MTP modules is not known"
    return Broken(f"S555 must be 0 for {model.model_type}", f"an MTP module makes the drafts, and {has}", nearest(0))

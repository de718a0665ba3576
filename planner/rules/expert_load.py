"""The rules of `expert_load`."""

from collections.abc import Iterator

from planner.facts.loads import Loads, row_without_load
from planner.problems.finding import Finding
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues


def loads_match_model(c: ValidValues) -> Iterator[Finding]:
    """Reject measured loads whose shape is not [MoE layers][logical experts]."""
    c.require("expert_load.file")
    loads: Loads = c["expert_load.loads"]
    model = c.model
    wanted = (model.num_moe_layers, model.num_routed_experts)
    found = (len(loads), len(loads[0]))
    if found == wanted:
        return
    rule = (
        f"S602 must have shape [{wanted[0]}][{wanted[1]}] (MoE layers, routed experts), it has [{found[0]}][{found[1]}]"
    )
    reason = "every expert of every layer needs its own load"
    if found == (model.num_layers, wanted[1]):
        loaded = next(index for index, row in enumerate(loads) if any(row))
        reason = f"the model's first {model.num_dense_layers} layers are dense, and row {loaded} has load"
    yield Finding("expert_load.file", c["expert_load.file"], rule, reason, "measure the loads on this model")


def every_layer_has_load(c: ValidValues) -> Iterator[Finding]:
    """Reject measured loads with a layer of zeros: every token goes to some expert of every MoE layer."""
    c.require("expert_load.file")
    loads: Loads = c["expert_load.loads"]
    model = c.model
    if len(loads) != model.num_moe_layers or (row := row_without_load(loads)) is None:
        return
    rule = f"S606 must have load in every MoE layer, and the model's layer {model.num_dense_layers + row} has none"
    reason = "a layer to which nothing was routed was not recorded"
    yield Finding("expert_load.file", c["expert_load.file"], rule, reason, "record the loads again, in every layer")


RULES = (
    Rule("S602", "resolved", loads_match_model),
    Rule("S606", "resolved", every_layer_has_load),
)

"""Template variables for the controller: its pod, its permissions, and the day that it follows."""

import operator
from collections.abc import Sequence
from functools import reduce
from math import ceil
from typing import Any

from planner.engines.container import Probe
from planner.facts import names
from planner.facts.engines import OURS
from planner.manifests.pod_parts import container_resources, priority_of, probes_without_weights
from planner.manifests.pods import Variables
from planner.plan.plan import Plan
from planner.plan.unit_starts import single_start_s
from planner.schedule.schedule import Step, Timetable
from planner.spec.kubernetes import DemandSpec

LIVENESS = Probe("/healthz", "health", None)
BACKLOG = 1.5  # steps of prompts per rank that count as full; assumed: between 1 and the 2 that the gateway sends


def controller_variables(plan: Plan) -> Variables | None:
    """Return the template variables of the controller's objects; None if there is no controller."""
    kubernetes, day = plan.kubernetes, plan.timetable
    if kubernetes.controller is None or day is None:
        return None
    name, namespace = names.controller_name(plan.name), kubernetes.namespace
    start_s = single_start_s(plan)
    resources = container_resources(kubernetes.controller.resources)
    variables: Variables = {
        "name": name,
        "namespace": namespace,
        "labels": names.labels(plan.name, "controller"),
        "selector": names.controller_selector(plan.name),
        "plan": plan.name,
        "deployment": f"{namespace}/{plan.name}",
        "image": kubernetes.tidemill_image or kubernetes.gateway.image or kubernetes.image,
        "health_port": names.Ports.HEALTH,
        "api_version": names.DEPLOYMENT_API_VERSION,
        "kind": names.DEPLOYMENT_KIND,
        "group": names.DOMAIN,
        "pace": f"{kubernetes.controller.pace:g}",
        "timezone": day.timezone,
        "warm_up_s": f"{day.warm_up_s:g}",
        "drain_s": f"{day.drain_s:g}",
        "turns": kubernetes.controller.turns,
        "ready_s": f"{kubernetes.ready_timeout:g}",
        "start_s": ceil(start_s),
        "turn_s": ceil(plan.drain_s + start_s),
        "units": _unit_variables(plan),
        "steps": _steps(day.steps),
        **probes_without_weights(kubernetes, LIVENESS),
    }
    # Another engine's router cannot tell units of different images apart.
    same_image = {"same_image": True} if plan.engine != OURS and len(plan.phases) > 1 else {}
    more = priority_of(kubernetes) | same_image | ({"resources": resources} if resources else {})
    parts = (
        _other_days(day),
        _lending_variables(plan),
        _healing_variables(plan),
        _node_variables(plan),
        _metrics_variables(plan),
        _live_maps(plan),
    )
    return reduce(operator.or_, parts, variables | more)


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [{"at": step.at, "units": step.num_units} for step in steps]


def _unit_variables(plan: Plan) -> list[dict[str, Any]]:
    """Return the controller's variables of each unit. It turns on the units of a phase in this order."""
    return [
        {"name": unit.name, "phase": unit.phase, "pods": len(unit.nodes), "nodes": list(unit.nodes)}
        | ({"spares": plan.unit_document(unit)["spares"]} if plan.kubernetes.heals else {})
        for unit in plan.units
    ]


def _other_days(day: Timetable) -> Variables:
    """Return the variable with the states of special weekdays and dates; empty if the schedule has none."""
    days = [{"days": list(each.days), "steps": _steps(each.steps)} for each in day.other_days]
    return {"other_days": days} if days else {}


def _lending_variables(plan: Plan) -> Variables:
    """Return the variables for lending the nodes of units that are off to other pods; empty without lending."""
    if not plan.kubernetes.lends_nodes or plan.timetable is None:
        return {}
    return {"notice_s": f"{plan.timetable.notice_s:g}"}


def _healing_variables(plan: Plan) -> Variables:
    """Return the variables for moving units off faulty nodes; empty if the controller does not move them."""
    controller = plan.kubernetes.controller
    if controller is None or controller.heal is None:
        return {}
    kind = plan.kubernetes.unit_kind
    pods = [names.unit_pod_name(unit.name, worker, kind) for unit in plan.units for worker in range(len(unit.nodes))]
    faults = {"conditions": controller.heal.conditions, "labels": controller.heal.labels}
    return {"heal": faults, "pods": pods}


def _metrics_variables(plan: Plan) -> Variables:
    """Return the variables for reading our gateway's metrics and acting on them; empty without it or a controller."""
    controller = plan.kubernetes.controller
    if controller is None or plan.engine != OURS:
        return {}
    port = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]["ports"]["metrics"]
    variables: Variables = {"metrics": names.cluster_metrics(plan.name, plan.kubernetes.namespace, port)}
    if controller.demand is not None:
        variables["demand"] = _demand_limits(plan, controller.demand)
    return variables | ({"stragglers_last": True} if controller.stragglers_last else {})


def _live_maps(plan: Plan) -> Variables:
    """Return the variables for giving units better expert maps while they serve; empty if the spec does not want it."""
    limits, units = plan.spec.expert_load.live, [unit for unit in plan.units if plan.gets_epochs(unit)]
    if limits is None or plan.live_maps is None or not units:
        return {}
    first = {unit.phase: unit for unit in reversed(units)}
    phases = {
        phase: {"ranksPerPod": first[phase].ranks_per_node, "rules": rules.model_dump(mode="json")}
        for phase, rules in plan.live_maps.items()
    }
    written = {"everySeconds": limits.every, "minGain": limits.min_gain, "maxBytes": limits.max_bytes, "phases": phases}
    return {"live_maps": written, "epoch_configs": [names.epoch_config(unit.name) for unit in units]}


def _demand_limits(plan: Plan, demand: DemandSpec) -> dict[str, Any]:
    """Return the demand from which on the controller adds units to the scheduled ones, with each phase's room per unit.

    Prefill keeps nothing of a computed prompt, so neither requests nor KV limit a prefill unit.
    """
    rooms = {}
    for unit in plan.units:
        limits, ranks = plan.unit_document(unit)["limits"], unit.ranks
        places = {"requests": ranks * limits["max_requests"], "kvTokens": ranks * limits["kv_tokens"]}
        step = {"promptTokens": ranks * limits["max_batch_tokens"]}
        rooms[unit.phase] = {"prefill": step, "decode": places, "mixed": places | step}[unit.phase]
    return {
        "used": demand.used,
        "backlog": BACKLOG,
        "afterSeconds": demand.after,
        "staySeconds": demand.stay,
        "rooms": rooms,
    }


def _node_variables(plan: Plan) -> Variables:
    """Return the variables with the nodes that the controller may change and its role for them; empty without nodes."""
    kubernetes, steps = plan.kubernetes, plan.timetable.all_steps if plan.timetable else ()
    if not (kubernetes.lends_nodes or kubernetes.heals):
        return {}
    switched = {unit for step in steps for unit in step.units if any(unit not in other.units for other in steps)}
    nodes: set[str] = set()
    for unit in plan.units:
        nodes |= {*unit.nodes} if kubernetes.heals or unit.name in switched else set()
        nodes |= {*plan.unit_document(unit)["spares"]} if kubernetes.heals else set()
    return {"nodes": sorted(nodes), "nodes_role": names.controller_nodes_role(kubernetes.namespace, plan.name)}

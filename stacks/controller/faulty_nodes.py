"""A round's work on faulty nodes: find and taint them, delete lost pods, and move one unit.

`heal.py` decides. Reading nodes and pods is expensive, so not every round does it.
"""

from collections.abc import Sequence

from stacks.controller.act import delete_lost_pod, taint_faulty_nodes
from stacks.controller.decide import Decision
from stacks.controller.follower import Follower, apply_scale, find_new_messages, report_event
from stacks.controller.heal import FaultReports, find_node_health, find_reports, heal
from stacks.controller.observe import unit_pods
from stacks.controller.report import HEALTHY
from stacks.controller.situation import Situation
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, object_name

__all__ = ["handle_faulty_nodes"]

LOOK_S = 30.0  # assumed: moving a unit takes minutes


def handle_faulty_nodes(
    follower: Follower, deployment: Manifest, situation: Situation, decision: Decision, now: float, elapsed_s: float
) -> Sequence[str] | None:
    """Taint faulty nodes, delete lost pods, and move one unit.

    Return why other units stay where they are; None if nodes were not looked at: the spec has no `heal`, it is not this
    round's turn, or the cluster fails.

    One round every `LOOK_S` seconds looks at nodes. The previous round was `elapsed_s` ago.
    """
    if "heal" not in deployment["spec"] or now % LOOK_S >= elapsed_s:
        return None
    own = {node for unit in situation.units for node in (*unit.nodes, *unit.spares)}
    try:
        everywhere = follower.api.list_all("v1", "Node", "", resourceVersion="0")  # "0": from the server's memory
        nodes = [each for each in everywhere if object_name(each) in own]
        pods = unit_pods(follower.api, deployment)
    except ProviderError as error:
        follower.say(f"cannot look at nodes: {error}")
        return None
    plan, settings = deployment["metadata"]["name"], deployment["spec"]["heal"]
    reports = find_reports(plan, situation.units, nodes, pods, settings, now)
    health = find_node_health(situation.units, nodes, pods, reports, now)
    healing = heal(situation, decision, health)
    _taint_nodes(follower, deployment, nodes, reports, now)
    for pod in pods:
        if object_name(pod) in health.lost:
            _delete_lost_pod(follower, deployment, pod, now)
    if healing.move:
        apply_scale(follower, deployment, healing.move, now)
    problems = [*healing.problems, *([reports.problem] if reports.problem else [])]
    for problem in find_new_messages(deployment, HEALTHY, problems):
        report_event(follower, deployment, "Stuck", problem, now, is_warning=True)
    return problems


def _delete_lost_pod(follower: Follower, deployment: Manifest, pod: Manifest, now: float) -> None:
    """Delete a lost pod, so that another takes its place, and report it. A dry run only reports."""
    what = f"{object_name(pod)}: {pod['spec']['nodeName']} does not answer, and the pod's grace period is over"
    if follower.is_dry_run:
        follower.say(f"would forget {what}")
        return
    try:
        delete_lost_pod(follower.api, pod)
    except ProviderError as error:
        follower.say(f"cannot forget {object_name(pod)}: {error}")
        return
    follower.say(f"forget {what}")
    report_event(follower, deployment, "Forget", what, now)


def _taint_nodes(
    follower: Follower, deployment: Manifest, nodes: Sequence[Manifest], reports: FaultReports, now: float
) -> None:
    """Taint nodes that report a fault, untaint the others, and report each change. A dry run only reports."""
    if follower.is_dry_run:
        follower.say(f"would keep new pods away from {', '.join(sorted(reports.faulty)) or 'no node'}")
        return
    for node, problem in taint_faulty_nodes(follower.api, deployment["metadata"]["name"], nodes, reports.faulty, now):
        if problem:
            follower.say(f"cannot mark a node: {problem}")
            continue
        is_faulty = node in reports.faulty
        reason, what = ("Faulty", "reports a fault") if is_faulty else ("Mended", "reports no fault any more")
        follower.say(f"{node} {what}")
        report_event(follower, deployment, reason, f"{node} {what}", now)

"""What a round does about faulty nodes: look at them, mark them, forget lost pods, and have one unit move.

`heal.py` decides. Nodes and pods are much to read, so not every round looks.
"""

from collections.abc import Sequence

from stacks.controller.act import forget, taint_faulty
from stacks.controller.decide import Decision
from stacks.controller.following import Following, change, note
from stacks.controller.heal import Reports, find_health, find_reports, heal
from stacks.controller.observe import unit_pods
from stacks.controller.report import HEALTHY, condition_before
from stacks.controller.situation import Situation
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["mend"]

LOOK_S = 30.0  # assumed: to move a unit takes minutes


def mend(
    following: Following, deployment: Manifest, situation: Situation, decision: Decision, now: float, since_s: float
) -> Sequence[str] | None:
    """Have one unit leave faulty nodes. Return what keeps units there; None if nobody has looked.

    The first round in each `LOOK_S` looks; the round before this one was `since_s` ago.
    """
    if "heal" not in deployment["spec"] or now % LOOK_S >= since_s:
        return None
    own = {node for unit in situation.units for node in (*unit.nodes, *unit.spares)}
    try:
        everywhere = following.api.list_all("v1", "Node", "", resourceVersion="0")  # what the server has in memory
        nodes = [each for each in everywhere if each["metadata"]["name"] in own]
        pods = unit_pods(following.api, deployment)
    except ProviderError as error:
        following.say(f"cannot look at nodes: {error}")
        return None
    plan, told = deployment["metadata"]["name"], deployment["spec"]["heal"]
    reports = find_reports(plan, situation.units, nodes, told, now)
    health = find_health(situation.units, nodes, pods, reports, now)
    healing = heal(situation, decision, health)
    _taint(following, deployment, nodes, reports, now)
    for pod in pods:
        if pod["metadata"]["name"] in health.lost:
            _forget(following, deployment, pod, now)
    if healing.move:
        change(following, deployment, healing.move, now)
    problems = [*healing.findings, *([reports.problem] if reports.problem else [])]
    said = condition_before(deployment, HEALTHY).get("message", "").split("; ")
    for problem in problems:
        if problem not in said:
            note(following, deployment, "Stuck", problem, now, is_warning=True)
    return problems


def _forget(following: Following, deployment: Manifest, pod: Manifest, now: float) -> None:
    """Let another pod take the place of one that is lost, and say so."""
    what = f"{pod['metadata']['name']}: {pod['spec']['nodeName']} does not answer, and its time to end is over"
    if following.is_dry_run:
        following.say(f"would forget {what}")
        return
    try:
        forget(following.api, pod)
    except ProviderError as error:
        following.say(f"cannot forget {pod['metadata']['name']}: {error}")
        return
    following.say(f"forget {what}")
    note(following, deployment, "Forget", what, now)


def _taint(following: Following, deployment: Manifest, nodes: Sequence[Manifest], reports: Reports, now: float) -> None:
    """Keep new pods away from nodes that report a fault, and no longer from others."""
    if following.is_dry_run:
        following.say(f"would keep new pods away from {', '.join(sorted(reports.faulty)) or 'no node'}")
        return
    for node, problem in taint_faulty(following.api, deployment["metadata"]["name"], nodes, reports.faulty, now):
        if problem:
            following.say(f"cannot mark a node: {problem}")
            continue
        is_faulty = node in reports.faulty
        reason, what = ("Faulty", "reports a fault") if is_faulty else ("Mended", "reports no fault any more")
        following.say(f"{node} {what}")
        note(following, deployment, reason, f"{node} {what}", now)

"""A deployment followed through its day: look, decide, do, say; and again.

    lease -> deployment -> units -> decide -> scale, event -> mark nodes -> heal -> status

Each round reads everything anew. So it makes no difference at which moment a controller ends: what it has done is in
the cluster, and the next one decides from that.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stacks.controller.act import forget, mark_nodes, scale, taint_faulty, tell, write_status
from stacks.controller.decide import Decision, Scale, decide
from stacks.controller.heal import find_health, heal, nodes_to_taint
from stacks.controller.lease import Lease
from stacks.controller.lend import Marks, lent, marks_at
from stacks.controller.observe import Observed, WrongDay, find_deployment, marks_before, observe, unit_pods
from stacks.controller.report import HEALTHY, condition_before, status_of, status_of_wrong_day
from stacks.controller.situation import Situation
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["Following", "follow", "one_round"]

LOOK_AT_HEALTH_S = 30.0  # assumed: nodes are much to read, and to move a unit takes minutes
LOOK_AT_NODES_S = 300.0  # assumed: nodes of hundreds are much to read, and few people take labels away
PERIOD_S = 5.0  # assumed: of warm-ups that take minutes; three of them renew a lease in time

Say = Callable[[str], None]


@dataclass(frozen=True)
class Following:
    """A deployment that is followed, and the one who follows it."""

    api: Api
    namespace: str
    name: str
    lease: Lease | None  # none in a dry run, which takes nothing from anybody
    say: Say

    @property
    def is_dry_run(self) -> bool:
        """True if nothing is written."""
        return self.lease is None


def follow(following: Following, is_over: Callable[[], bool], wait: Callable[[float], object]) -> None:
    """Follow the day until `is_over`; `wait` some seconds between two rounds. Errors are said and survived."""
    said = ""
    while not is_over():
        try:
            news = one_round(following, time.time())
        except ProviderError as error:
            news = str(error)
        if news and news != said:
            following.say(news)
        said = news or said
        wait(PERIOD_S)
    if following.lease is not None:
        _let_go(following, following.lease)


def one_round(following: Following, now: float) -> str:
    """Do what is to be done at `now`. Return what a person should know. Raise ProviderError."""
    api = following.api
    if following.lease is not None and not following.lease.is_taken(api, now):
        return "another controller follows this deployment"
    deployment = find_deployment(api, following.namespace, following.name)
    if deployment is None:
        return f"there is no TidemillDeployment {following.namespace}/{following.name}"
    try:
        observed = observe(api, deployment)
    except WrongDay as error:
        if not following.is_dry_run:
            write_status(api, deployment, status_of_wrong_day(str(error), now, deployment))
        return str(error)
    decision = decide(observed.situation, observed.clock.of(now))
    for change in decision.scales:
        _change(following, deployment, change, now)
    marks = _lend(following, deployment, observed, now)
    problems = _heal(following, deployment, observed.situation, decision, now)
    if not following.is_dry_run:
        status = status_of(observed, decision, marks, problems, now, deployment)
        write_status(api, deployment, status)
    return _line(decision)


def _change(following: Following, deployment: Manifest, change: Scale, now: float) -> None:
    """Scale one unit, and say so. A unit that cannot be scaled keeps none of the others."""
    word = "start" if change.is_on else "drain"
    if following.is_dry_run:
        following.say(f"would {word} {change.unit}: {change.why}")
        return
    try:
        scale(following.api, following.namespace, change)
        following.say(f"{word} {change.unit}: {change.why}")
        tell(following.api, deployment, word.capitalize(), f"{change.unit}: {change.why}", now)
    except ProviderError as error:
        following.say(f"cannot {word} {change.unit}: {error}")


def _lend(following: Following, deployment: Manifest, observed: Observed, now: float) -> Marks:
    """Mark nodes as free or to be left. Return the marks that all nodes have; those of before if some could not be."""
    situation, before = observed.situation, marks_before(deployment)
    marks = marks_at(situation, observed.clock.of(now))
    is_due = marks != before or now % LOOK_AT_NODES_S < PERIOD_S
    if not situation.lends_nodes or not is_due:
        return marks
    if following.is_dry_run:
        following.say(f"would have {len(marks.free)} nodes free and {len(marks.reclaimed)} left")
        return marks
    nodes = [node for unit in situation.units for node in unit.nodes]
    problems = list(mark_nodes(following.api, deployment["metadata"]["name"], nodes, marks))
    for problem in problems:
        following.say(f"cannot mark a node: {problem}")
    for reason, message in () if problems else lent(situation, before, marks):
        following.say(message)
        tell(following.api, deployment, reason, message, now)
    return before if problems else marks


def _heal(
    following: Following, deployment: Manifest, situation: Situation, decision: Decision, now: float
) -> Sequence[str] | None:
    """Have one unit leave faulty nodes. Return what keeps units there; None if nobody has looked."""
    if "heal" not in deployment["spec"] or now % LOOK_AT_HEALTH_S >= PERIOD_S:
        return None
    own = {node for unit in situation.units for node in (*unit.nodes, *unit.spares)}
    try:
        everywhere = following.api.list_all("v1", "Node", "", resourceVersion="0")  # what the server has in memory
        nodes = [each for each in everywhere if each["metadata"]["name"] in own]
        pods = unit_pods(following.api, deployment)
    except ProviderError as error:
        following.say(f"cannot look at nodes: {error}")
        return None
    health = find_health(situation.units, nodes, pods, now)
    healing = heal(situation, decision, health)
    unmarked = _taint(following, deployment, situation, nodes, now)
    for pod in pods:
        if pod["metadata"]["name"] in health.lost:
            _forget(following, deployment, pod, now)
    if healing.move:
        _change(following, deployment, healing.move, now)
    problems = [*healing.problems, *([unmarked] if unmarked else [])]
    said = condition_before(deployment, HEALTHY).get("message", "").split("; ")
    for problem in problems:
        if problem not in said and not following.is_dry_run:
            tell(following.api, deployment, "Stuck", problem, now, is_warning=True)
    return problems


def _forget(following: Following, deployment: Manifest, pod: Manifest, now: float) -> None:
    """Let another pod take the place of one that is lost, and say so."""
    what = f"{pod['metadata']['name']}: {pod['spec']['nodeName']} does not answer, and its time to end is over"
    if following.is_dry_run:
        following.say(f"would forget {what}")
        return
    try:
        forget(following.api, pod)
        following.say(f"forget {what}")
        tell(following.api, deployment, "Forget", what, now)
    except ProviderError as error:
        following.say(f"cannot forget {pod['metadata']['name']}: {error}")


def _taint(
    following: Following, deployment: Manifest, situation: Situation, nodes: Sequence[Manifest], now: float
) -> str | None:
    """Keep new pods away from nodes that report a fault, and no longer from others. Return why some are left out."""
    plan, conditions = deployment["metadata"]["name"], deployment["spec"]["heal"]["conditions"]
    faulty, problem_of_all = nodes_to_taint(situation.units, nodes, conditions)
    if following.is_dry_run:
        following.say(f"would keep new pods away from {', '.join(sorted(faulty)) or 'no node'}")
        return problem_of_all
    for node, problem in taint_faulty(following.api, plan, nodes, faulty):
        if problem:
            following.say(f"cannot mark a node: {problem}")
            continue
        reason, what = ("Faulty", "reports a fault") if node in faulty else ("Mended", "reports no fault any more")
        following.say(f"{node} {what}")
        tell(following.api, deployment, reason, f"{node} {what}", now)
    return problem_of_all


def _line(decision: Decision) -> str:
    return f"state {decision.state}: {decision.why}"


def _let_go(following: Following, lease: Lease) -> None:
    try:
        lease.let_go(following.api, time.time())
    except ProviderError as error:
        following.say(f"the lease runs out by itself: {error}")

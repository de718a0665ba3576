"""A deployment followed through its day: look, decide, do, say; and again.

    lease -> deployment -> units -> gateway -> decide -> scale -> events -> mark nodes -> heal -> status

Each round reads everything anew. So it makes no difference at which moment a controller ends: what it has done is in
the cluster, and the next one decides from that. What time it is the API server says: it writes when a pod has to be
gone, and a clock of ours that is ahead would end what has time left.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from stacks.controller.act import mark_nodes, write_status
from stacks.controller.decide import Decision, decide
from stacks.controller.following import Following, change, note
from stacks.controller.health import Health
from stacks.controller.lease import Lease
from stacks.controller.lend import Marks, lent, marks_at
from stacks.controller.measure import Measured, measure, suspects_before
from stacks.controller.mend import mend
from stacks.controller.observe import Observed, WrongDay, find_deployment, marks_before, observe
from stacks.controller.quota import keep_quota
from stacks.controller.report import FOLLOWING, FORECAST, condition_before, status_of, status_of_wrong_day
from stacks.controller.situation import Situation
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["PERIOD_S", "follow", "once", "one_round"]

LOOK_AT_NODES_S = 300.0  # assumed: nodes of hundreds are much to read, and few people take labels away
PERIOD_S = 5.0  # assumed: of warm-ups that take minutes; three of them renew a lease in time


def follow(following: Following, is_over: Callable[[], bool], wait: Callable[[float], object], health: Health) -> None:
    """Follow the day until `is_over`; `wait` some seconds between two rounds. Errors are said and survived.

    `health` hears how each round ends.
    """
    said, last = "", -math.inf
    while not is_over():
        try:
            now = following.clock()
            news = one_round(following, now, now - last if now > last else math.inf)
            last = now
            health.ended(well=True)
        except ProviderError as error:
            news = str(error)
            health.ended(well=False)
        if news and news != said:
            following.say(news)
        said = news or said
        wait(PERIOD_S)
    if following.lease is not None:
        _let_go(following, following.lease)


def once(following: Following, now: float) -> str:
    """Do one round, after which another controller may act at once. Return what a person should know.

    Raise ProviderError.
    """
    news = one_round(following, now, math.inf)
    if following.lease is not None:
        _let_go(following, following.lease)
    return news


def one_round(following: Following, now: float, since_s: float = PERIOD_S) -> str:
    """Do what is to be done at `now`. Return what a person should know. Raise ProviderError.

    The last round that went well was `since_s` ago. Few rounds look at nodes, and the first one does.
    """
    api = following.api
    if following.lease is not None and not following.lease.is_taken(api, now):
        return "another controller follows this deployment"
    deployment = find_deployment(api, following.namespace, following.name)
    if deployment is None:
        return f"there is no TidemillDeployment {following.namespace}/{following.name}"
    try:
        observed = observe(api, deployment, now)
    except WrongDay as error:
        if not following.is_dry_run:
            write_status(api, deployment, status_of_wrong_day(str(error), now, deployment))
        return str(error)
    measured = measure(deployment, observed, now)
    observed = measured.observed
    decision = decide(observed.situation, observed.clock.of(now))
    for each in decision.scales:
        change(following, deployment, each, now)
    for reason, message, is_warning in _news(deployment, measured, decision):
        following.say(message)
        note(following, deployment, reason, message, now, is_warning=is_warning)
    marks, unmarked = _lend(following, deployment, observed, now, since_s)
    problems = mend(following, deployment, observed.situation, decision, now, since_s)
    if not following.is_dry_run:
        status = status_of(measured, decision, marks, problems, now, deployment)
        write_status(api, deployment, status)
    return "; ".join([f"state {decision.state}: {decision.why}", *unmarked])


def _news(deployment: Manifest, measured: Measured, decision: Decision) -> Iterator[tuple[str, str, bool]]:
    """Yield what is new in orders and in the gateway's figures: reason, words, whether a person has to do something."""
    unread = measured.observed.situation.orders.unread
    for condition, reason, messages in ((FOLLOWING, "WrongOrder", unread), (FORECAST, "BeyondPlan", decision.beyond)):
        said = condition_before(deployment, condition).get("message", "").split("; ")
        yield from ((reason, each, True) for each in messages if each not in said)
    before = suspects_before(deployment)
    after = before if measured.suspects is None else measured.suspects
    was, now = ({unit for unit, each in every.items() if each.is_last} for every in (before, after))
    for unit in sorted(now - was):
        yield "Straggling", f"a slow rank holds up {unit}, which serves after all others of its phase now", True
    for unit in sorted(was - now):
        yield "Mended", f"no rank holds up {unit} any more", False


def _lend(
    following: Following, deployment: Manifest, observed: Observed, now: float, since_s: float
) -> tuple[Marks, Sequence[str]]:
    """Mark nodes as free or to be left. Return the marks that all nodes have then, and what went wrong with some."""
    situation, before = observed.situation, marks_before(deployment)
    marks = marks_at(situation, observed.clock.of(now))
    is_due = marks != before or now % LOOK_AT_NODES_S < since_s
    if not situation.lends_nodes or not is_due:
        return marks, ()
    if following.is_dry_run:
        following.say(f"would have {len(marks.free)} nodes free and {len(marks.reclaimed)} left")
        return marks, ()
    if len(marks.free) < len(before.free):
        _keep_quota(following, deployment, marks, now)  # before the nodes are gone
    problems = _mark(following, deployment, situation, marks)
    marks = marks.but(problems, before)
    _keep_quota(following, deployment, marks, now)
    for reason, message in lent(situation, before, marks):
        following.say(message)
        note(following, deployment, reason, message, now)
    some = next(iter(problems.values()), None)
    return marks, (f"{len(problems)} of the units' nodes cannot be marked: {some}",) if some else ()


def _mark(
    following: Following, deployment: Manifest, situation: Situation, marks: Marks
) -> Mapping[str, ProviderError]:
    """Mark the units' nodes. Return those that could not be, and why."""
    nodes = list(dict.fromkeys(node for unit in situation.units for node in unit.nodes))
    try:
        return dict(mark_nodes(following.api, deployment["metadata"]["name"], nodes, marks))
    except ProviderError as error:
        return dict.fromkeys(nodes, error)


def _keep_quota(following: Following, deployment: Manifest, marks: Marks, now: float) -> None:
    """Let Kueue know how many nodes are free, where it is to."""
    told = deployment["spec"]["lendNodes"].get("kueue")
    if told is None:
        return
    try:
        changed = keep_quota(following.api, told, len(marks.free))
    except ProviderError as error:
        following.say(f"cannot change Kueue's quota: {error}")
        return
    if changed:
        following.say(changed)
        note(following, deployment, "Quota", changed, now)


def _let_go(following: Following, lease: Lease) -> None:
    try:
        lease.let_go(following.api, following.clock())
    except ProviderError as error:
        following.say(f"the lease runs out by itself: {error}")

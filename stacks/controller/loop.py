"""The controller's loop: look at a deployment, decide, act, report, and again.

    lease -> deployment -> units -> gateway -> decide -> note, scale -> events -> maps -> mark nodes -> heal -> sweep
    -> status

Each round reads everything anew, so a controller may end at any moment: what it has done is in the cluster, and the
next one goes on from there. The time is the API server's, which also writes the deadlines of pods: with a clock of our
own that is ahead, pods would end too early.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.facts.terms import Phase
from planner.plan.sections import LiveMap
from stacks.controller.act import mark_nodes, write_changes, write_status
from stacks.controller.changes import ChangeRecord, changes_json, follow_changes
from stacks.controller.decide import Decision, decide
from stacks.controller.faulty_nodes import handle_faulty_nodes
from stacks.controller.follower import Follower, apply_scale, find_new_messages, report_event
from stacks.controller.health import Health
from stacks.controller.lease import Lease
from stacks.controller.lend import Marks, decide_marks, lending_events
from stacks.controller.live_maps import read_rules, serving_units, update_maps
from stacks.controller.measure import Measurement, measure, previous_suspects
from stacks.controller.observe import (
    CURRENT,
    Observation,
    find_deployment,
    observe,
    previous_marks,
    previous_units,
    unit_pods,
)
from stacks.controller.report import FOLLOWING, FORECAST, build_status, build_wrong_day_status
from stacks.controller.situation import Situation
from stacks.controller.spec import WrongDay
from stacks.controller.sweep import remove_departed, sweep
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest
from stacks.measured.limits import Limits

__all__ = ["PERIOD_S", "follow", "run_once", "run_round"]

LOOK_AT_NODES_S = 300.0  # assumed: hundreds of nodes are much to read, and labels are rarely removed by hand
PERIOD_S = 5.0  # assumed: short beside warm-ups of minutes, and three of them renew the lease in time


def follow(follower: Follower, is_over: Callable[[], bool], wait: Callable[[float], object], health: Health) -> None:
    """Run rounds until `is_over`, with a `wait` between two. A round's error is reported, and the next round comes.

    `health` records how each round ends.
    """
    said, last = "", -math.inf
    while not is_over():
        try:
            now = follower.clock()
            news = run_round(follower, now, now - last if now > last else math.inf)
            last = now
            health.note_end(went_well=True)
        except ProviderError as error:
            news = str(error)
            health.note_end(went_well=False)
        if news and news != said:
            follower.say(news)
        said = news or said
        wait(PERIOD_S)
    if follower.lease is not None:
        _release_lease(follower, follower.lease)


def run_once(follower: Follower, now: float) -> str:
    """Do one round and release the lease. Return the round's message for the operator.

    Raises ProviderError if the cluster refuses or cannot be reached.
    """
    news = run_round(follower, now, math.inf)
    if follower.lease is not None:
        _release_lease(follower, follower.lease)
    return news


def run_round(follower: Follower, now: float, elapsed_s: float = PERIOD_S) -> str:
    """Do the work of one round at `now`. Return its message for the operator.

    The last successful round was `elapsed_s` ago. Few rounds look at nodes; the first one does. Raises ProviderError if
    the cluster refuses or cannot be reached.
    """
    api = follower.api
    if follower.lease is not None and not follower.lease.acquire(api, now):
        return "another controller follows this deployment"
    deployment = find_deployment(api, follower.namespace, follower.name)
    if deployment is None:
        return f"there is no TidemillDeployment {follower.namespace}/{follower.name}"
    try:
        observation, rules = observe(api, deployment, now), read_rules(deployment["spec"])
    except WrongDay as error:
        if not follower.is_dry_run:
            write_status(api, deployment, build_wrong_day_status(str(error), now, deployment))
        return str(error)
    measurement = measure(deployment, observation, now)
    observation = measurement.observation
    decision = decide(observation.situation, observation.clock.day_time(now))
    known, failed = previous_units(deployment), measurement.failed
    changes = follow_changes(deployment, observation.situation, decision, known, now, failed)
    _note_changes(follower, deployment, changes)
    for each in decision.scales:
        apply_scale(follower, deployment, each, now)
    for reason, message, is_warning in _find_news(deployment, measurement, decision):
        follower.say(message)
        report_event(follower, deployment, reason, message, now, is_warning=is_warning)
    is_held = decision.is_held or not observation.situation.orders.may_drain
    maps = _follow_maps(follower, deployment, rules, observation.situation, now, is_held=is_held)
    marks, unmarked = _lend_nodes(follower, deployment, observation, now, elapsed_s)
    problems = handle_faulty_nodes(follower, deployment, observation.situation, decision, now, elapsed_s)
    unit_names = remove_departed(follower, deployment, decision.leaving, now)
    sweep(follower, deployment, now, elapsed_s)
    if not follower.is_dry_run:
        status = build_status(measurement, decision, marks, problems, unit_names, changes, maps, now, deployment)
        write_status(api, deployment, status)
    return "; ".join([f"state {decision.state}: {decision.reason}", *unmarked])


def _note_changes(follower: Follower, deployment: Manifest, changes: Sequence[ChangeRecord]) -> None:
    """Write the records of changes to the deployment's status before acting on them.

    Nothing is written in a dry run, or if the status has these records already. A failure is only reported.
    """
    written = changes_json(changes)
    if follower.is_dry_run or written == ((deployment.get("status") or {}).get("changes") or []):
        return
    try:
        write_changes(follower.api, deployment, written)
    except ProviderError as error:
        follower.say(f"cannot write down what a change does: {error}")


def _find_news(deployment: Manifest, measurement: Measurement, decision: Decision) -> Iterator[tuple[str, str, bool]]:
    """Yield (reason, message, is_warning) of events about orders and the gateways' figures."""
    unread = measurement.observation.situation.orders.unreadable
    for condition, reason, messages in (
        (FOLLOWING, "WrongOrder", unread),
        (FORECAST, "BeyondPlan", decision.unmet_demand),
        (CURRENT, "Stopped", (decision.turns.reason,) if decision.turns.is_stopped else ()),
    ):
        yield from ((reason, each, True) for each in find_new_messages(deployment, condition, messages))
    before = previous_suspects(deployment)
    after = before if measurement.suspects is None else measurement.suspects
    was, now = ({unit for unit, each in every.items() if each.is_last} for every in (before, after))
    for unit in sorted(now - was):
        yield "Straggling", f"a slow rank holds up {unit}, which serves after all others of its phase now", True
    for unit in sorted(was - now):
        yield "Mended", f"no rank holds up {unit} any more", False


def _follow_maps(
    follower: Follower,
    deployment: Manifest,
    rules: Mapping[Phase, LiveMap],
    situation: Situation,
    now: float,
    *,
    is_held: bool,
) -> Sequence[Mapping[str, Any]]:
    """Let units change their expert maps, if the spec says so and nobody holds them.

    Return the status' `expertMaps`.
    """
    settings = deployment["spec"].get("liveMaps")
    if settings is None or follower.is_dry_run:
        return ()
    written = (deployment.get("status") or {}).get("expertMaps") or []
    if is_held:
        return written
    limits = Limits(settings["everySeconds"], settings["minGain"], settings["maxBytes"])
    try:
        pods = unit_pods(follower.api, deployment)
    except ProviderError as error:
        follower.say(f"no expert map changes, since pods cannot be looked at: {error}")
        return written
    visit = follower.maps.look(limits, list(serving_units(follower.api, deployment, rules, situation.units, pods)))
    if message := follower.maps.news(visit):
        follower.say(message)
        report_event(follower, deployment, "ExpertMap", message, now, is_warning=bool(visit and visit.has_failed))
    return update_maps(written, visit)


def _lend_nodes(
    follower: Follower, deployment: Manifest, observation: Observation, now: float, elapsed_s: float
) -> tuple[Marks, Sequence[str]]:
    """Mark nodes as free or reclaimed. Return the resulting marks of all nodes, and a text for each failure."""
    situation, before = observation.situation, previous_marks(deployment)
    marks = decide_marks(situation, observation.clock.day_time(now))
    is_due = marks != before or now % LOOK_AT_NODES_S < elapsed_s
    if not situation.lends_nodes or not is_due:
        return marks, ()
    if follower.is_dry_run:
        follower.say(f"would have {len(marks.free)} nodes free and {len(marks.reclaimed)} left")
        return marks, ()
    problems = _mark_nodes(follower, deployment, situation, marks)
    marks = marks.keep_previous(problems, before)
    for reason, message in lending_events(situation, before, marks):
        follower.say(message)
        report_event(follower, deployment, reason, message, now)
    some = next(iter(problems.values()), None)
    return marks, (f"{len(problems)} of the units' nodes cannot be marked: {some}",) if some else ()


def _mark_nodes(
    follower: Follower, deployment: Manifest, situation: Situation, marks: Marks
) -> Mapping[str, ProviderError]:
    """Write `marks` (free, reclaimed) on the units' nodes. Return node -> error for nodes that could not be marked."""
    nodes = list(dict.fromkeys(node for unit in situation.units for node in unit.nodes))
    try:
        return dict(mark_nodes(follower.api, deployment["metadata"]["name"], nodes, marks))
    except ProviderError as error:
        return dict.fromkeys(nodes, error)


def _release_lease(follower: Follower, lease: Lease) -> None:
    try:
        lease.release(follower.api, follower.clock())
    except ProviderError as error:
        follower.say(f"the lease runs out by itself: {error}")

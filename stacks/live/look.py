"""One look at a deployment, here or in a cluster: its units, its day, and the metrics of its processes.

`tidemill status --watch` takes one look after the other and draws them (`screen.py`). Nothing is served for it: it
reads the supervisor's record or the cluster's objects, and the same metrics that a Prometheus scrapes.

On this machine all ranks are asked. In a cluster the gateways and the first rank of each unit are: through the API
server, which carries each answer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import urllib3

from planner.facts import names
from planner.facts.quantities import counted
from planner.plan.plan import Plan
from planner.problems.printable import printable
from planner.schedule.schedule import ALL_STAY_ON
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest, Reference
from stacks.local.cli import day_line, done_acts, explain_state, map_json
from stacks.local.deployment import promised_ms
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.measured.samples import Sample, fetch, read_samples

if TYPE_CHECKING:
    from stacks.kube.api import Api

__all__ = ["Event", "Look", "Part", "look_at_cluster", "look_here"]

ASK_S = 2.0  # assumed: a process answers at once; one that hangs is shown without figures
MAX_PAGE_BYTES = 2**22  # assumed: a rank with many experts has some hundred kB
AT_ONCE = 16  # pages asked for at the same time
SHOWN = "|".join(  # the metrics that the screen shows
    (
        r"num_requests_(?:running|waiting|rejected_total)",
        r"(?:prompt|generation|prefix_found)_tokens_total",
        r"(?:time_to_first_token|inter_token_latency)_seconds_(?:bucket|count|sum)",
        "rank_requests_(?:running|waiting)",
        "kv_cache_usage_perc",
        "expert_load_imbalance",
        "prefix_cache_(?:queries|hits)_total",
    )
)

Event = tuple[str, str]  # when, as the source tells it or empty; and a sentence
Ask = Callable[[], str]


@dataclass(frozen=True)
class Part:
    """A unit or a gateway of a deployment, and its state.

    `ranks` is 0 for gateways; `reason` says why the part is not ready, or what is wrong with it. `own_map` names the
    expert map that a unit follows instead of the plan's, and why; it is empty while that is not known.
    """

    name: str
    phase: str
    ranks: int
    state: str
    reason: str | None
    own_map: str | None = None


@dataclass(frozen=True)
class Look:
    """The state of a deployment at one moment.

    `pages` maps a gateway's or rank's name to the samples of its metrics.
    """

    name: str
    where: str
    units: tuple[Part, ...]
    gateways: tuple[Part, ...] = ()
    day: str | None = None  # what the plan's day asks for now
    notes: tuple[str, ...] = ()  # what stands in the way
    events: tuple[Event, ...] = ()  # that the source remembers, oldest first
    slo_ms: tuple[float | None, float | None] = (None, None)  # promised means of TTFT and TPOT
    pages: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    has_failed: bool = False


def look_here(record: Record) -> Look:
    """Return the present state of a deployment on this machine, from its record and its processes' metrics."""
    pages = {
        f"{names.short_name(part.name, record.name)}/{rank}": partial(_read_here, address)
        for part in record.parts
        if part.state not in ("off", "ended")
        for rank, address in enumerate(part.metrics)
    }
    notes = [record.failure, record.trouble and f"the supervisor goes on, but {record.trouble}"]
    return Look(
        name=record.name,
        where=f"{_addresses(record)}, plan {_short(record.plan_digest)}",
        units=tuple(_part(record, unit, unit.phase, unit.ranks) for unit in record.units),
        gateways=tuple(_part(record, gateway, "gateway", 0) for gateway in record.gateways),
        day=(ALL_STAY_ON if record.switches_units else None) if record.day is None else day_line(record.day),
        notes=tuple(printable(note) for note in notes if note),
        events=tuple(("", printable(act)) for act in done_acts(record.day)) if record.day else (),
        slo_ms=record.slo_ms,
        pages=_read_pages(pages),
        has_failed=record.has_failed,
    )


def look_at_cluster(plan: Plan, api: "Api") -> Look:
    """Return the present state of `plan` in the cluster behind `api`.

    Raises ProviderError if the cluster cannot be asked.
    """
    from stacks.live.status import read_live_plan  # the Kubernetes client takes longer to load than all else here

    live = read_live_plan(plan, api)
    status: Manifest = {}
    if plan.kubernetes.controller is not None:
        found = api.get(
            Reference(names.DEPLOYMENT_API_VERSION, names.DEPLOYMENT_KIND, plan.kubernetes.namespace, plan.name)
        )
        status = (found or {}).get("status") or {}
    digest = _short(live.plan_digest) if live.plan_digest else "another" if live.differing else "not applied"
    unread = [f"the nodes could not be read: {live.unseen}"] if live.unseen else []
    unread += [f"not every gateway could be asked: {live.unasked}"] if live.unasked else []
    pages = _read_pages(_pod_pages(plan, api))
    return Look(
        name=plan.name,
        where=f"{live.endpoint}, plan {digest}",
        units=tuple(
            Part(
                names.short_name(each.name, plan.name),
                each.phase,
                each.ranks,
                each.state,
                _printable(each.reason),
                _own_map(each.expert_map),
            )
            for each in live.units
        ),
        day=_controller_line(status),
        notes=tuple(map(printable, unread)),
        events=tuple(_controller_events(status)),
        slo_ms=promised_ms(plan),
        pages=pages,
    )


def _addresses(record: Record) -> str:
    return record.endpoint if len(record.gateways) == 1 else counted(len(record.gateways), "gateway")


def _short(digest: str) -> str:
    """Return the beginning of a digest, enough to tell plans apart. `status` without --watch shows all of it."""
    return digest[: len("sha256:") + 12]


def _part(record: Record, part: UnitRecord | GatewayRecord, phase: str, ranks: int) -> Part:
    name = names.short_name(part.name, record.name)
    state, own_map = part.state, None
    if isinstance(part, UnitRecord):
        state = f"loading {part.loaded:.0%}" if state == "loading" else state
        own_map = _own_map(map_json(part))
    return Part(name, phase, ranks, state, _printable(explain_state(record, part)), own_map)


def _own_map(expert_map: Mapping[str, str] | None) -> str | None:
    """Return which expert map a unit follows instead of the plan's, and why.

    Return None if it follows the plan's, and nothing if its ranks do not say which.
    """
    if expert_map is None or expert_map.get("in_service") == expert_map["plan"]:
        return None
    if "in_service" not in expert_map:
        return ""
    why = f": {expert_map['why']}" if "why" in expert_map else ""
    return printable(f"{_short(expert_map['in_service'])}{why}")


def _printable(reason: str | None) -> str | None:
    """Return a reason without control characters, or None: the text may come from a process."""
    return None if reason is None else printable(reason)


def _controller_line(status: Manifest) -> str | None:
    """Return the controller's line: how many units are ready, the next change, and why. None if its status is empty."""
    parts = [status.get("units"), status.get("next") and f"next {status['next']}", status.get("why")]
    return printable("; ".join(map(str, filter(None, parts)))) or None


def _controller_events(status: Manifest) -> list[Event]:
    """Return the controller's recorded events, oldest first: changes of units, and conditions with their start."""
    from stacks.live.changes import describe_course

    found = [(change["began"], f"units change: {describe_course(change)}") for change in status.get("changes") or ()]
    found += [
        (each["lastTransitionTime"], f"{each.get('type')} {each.get('status')}: {each.get('message')}")
        for each in status.get("conditions") or ()
    ]
    return [(at[5:16].replace("T", " "), printable(sentence)) for at, sentence in sorted(found)]


def _pod_pages(plan: Plan, api: "Api") -> dict[str, Ask]:
    """Return gateway or rank -> a function that reads its page of metrics.

    The result has each running gateway, and the first rank of each running unit. It is empty for other engines.
    """
    from planner.facts.engines import OURS

    if plan.engine != OURS:
        return {}  # other engines have metrics of their own
    selector = ",".join(f"{key}={value}" for key, value in names.plan_selector(plan.name).items())
    pods = api.list_all("v1", "Pod", plan.kubernetes.namespace, labelSelector=selector)
    running = {pod["metadata"]["name"]: pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"}
    firsts = {names.unit_pod_name(unit.name, 0, plan.kubernetes.unit_kind): unit.name for unit in plan.units}
    component = names.gateway_selector(plan.name)[names.COMPONENT_LABEL]
    asked: dict[str, Ask] = {}
    for name, pod in running.items():
        is_gateway = (pod["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == component
        if is_gateway or name in firsts:
            source = name if is_gateway else f"{names.short_name(firsts[name], plan.name)}/0"
            asked[source] = partial(api.read_pod, Reference.from_manifest(pod), names.Ports.METRICS, "/metrics")
    return asked


def _read_here(address: str) -> str:
    """Return the page of metrics at an address of this machine.

    Raises HTTPError, OSError or ValueError if nothing answers there with such a page.
    """
    return fetch(f"http://{address}/metrics", timeout_s=ASK_S, max_bytes=MAX_PAGE_BYTES).decode(errors="replace")


def _read_pages(asks: Mapping[str, Ask]) -> dict[str, Sequence[Sample]]:
    """Return gateway or rank -> the samples on its page, without gateways and ranks that do not answer."""

    def read(ask: Ask) -> Sequence[Sample] | None:
        try:
            return tuple(read_samples(ask(), SHOWN))
        except (urllib3.exceptions.HTTPError, OSError, ValueError, ProviderError):
            return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = zip(asks, threads.map(read, asks.values()), strict=True)
        return {name: samples for name, samples in found if samples is not None}

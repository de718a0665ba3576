"""Units in a cluster get better expert maps while they serve, within the limits of `spec.liveMaps`.

    ranks' metrics, the page of their epoch -> a better map (`stacks/measured`) -> a ConfigMap, which pods of the unit
    have in their launch folder -> its first rank proposes it -> the page shows the next epoch

Who may write that ConfigMap may move experts. A unit that starts again begins with the plan's map, and the page says
so. The loads are in this process alone, so another controller measures anew.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from planner.facts import names
from planner.facts.digest import digest_of
from planner.facts.terms import Phase
from planner.plan.sections import LiveMap
from stacks.controller.act import write_next_epoch
from stacks.controller.situation import LiveUnit
from stacks.controller.spec import WrongDay
from stacks.kube.api import Api
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest
from stacks.measured.epochs import Ending, InService, Rows, fetch_epoch, next_document, read_in_service
from stacks.measured.limits import Limits

if TYPE_CHECKING:
    from stacks.measured.live_maps import LiveMaps, ServingUnit, Visit

__all__ = ["FollowedMaps", "read_rules", "serving_units", "update_maps"]

ASK_S = 10.0  # assumed: a page with a map has some hundred kB
POLL_S = 2.0
FROM_OTHERS = "from an earlier controller, or from somebody else"
WAIT_S = 300.0  # assumed: a kubelet brings a changed ConfigMap within some two minutes, and a switch takes less


@dataclass
class FollowedMaps:
    """The live maps of the deployment that a controller follows. Measuring begins anew when the limits change."""

    limits: Limits | None = None
    trouble: str = ""  # as last said
    live: "LiveMaps | None" = None

    def look(self, limits: Limits, units: "Sequence[ServingUnit]") -> "Visit | None":
        """Return the outcome of the last visit to a unit if it has ended since the last look; start the next visit.

        A visit measures a unit and may change its map within `limits`. New `limits` begin measuring anew.
        """
        from stacks.measured.live_maps import LiveMaps  # loads numpy, which few controllers need

        if self.live is None or limits != self.limits:
            self.limits, self.live = limits, LiveMaps(limits)
        return self.live.look(units)

    def news(self, visit: "Visit | None") -> str:
        """Return what an operator has to hear of a visit: a switch, or a failure unlike the last one. Else empty."""
        if visit is None or not (visit.has_switched or visit.has_failed):
            return ""
        before, self.trouble = self.trouble, visit.said if visit.has_failed else ""
        if visit.has_switched:
            return f"{visit.unit} follows a better expert map: {visit.said}"
        return "" if visit.said == before else f"{visit.unit} gets no better expert map: {visit.said}"


@dataclass(frozen=True)
class _Unit:
    """A `ServingUnit` in a cluster. Its ranks are asked at the addresses of its pods."""

    name: str
    num_ranks: int
    rules: LiveMap
    life: tuple[tuple[str, int], ...]
    metrics: tuple[str, ...]
    hand_in: Callable[[str, str], None] = field(repr=False)  # unit, content of the next epoch's document

    def map_in_service(self) -> InService:
        """Return the map on rank 0's page `/epoch`. Raises OSError or ValueError if the page cannot be read."""
        return read_in_service(self._fetch_epoch())

    def hand_over(self, rows: Rows, found: InService) -> Ending:
        """Write the document of the next epoch, and wait until rank 0 shows that the unit is in it.

        If it does not within `WAIT_S`, the returned ending has the former epoch and a reason. So it has once the unit
        is in another one: it was on its way there, such as by the document of a controller that has ended. Raises
        ValueError if it is not in the epoch `found` any more.
        """
        standing = self._fetch_epoch()
        if standing["digest"] != found.digest:
            raise ValueError("somebody else has changed its map meanwhile")
        document = next_document(standing, rows)
        self.hand_in(self.name, json.dumps(document))
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            time.sleep(POLL_S)
            now = self._fetch_epoch()
            if now["digest"] == document["digest"]:
                return Ending(document["number"], document["digest"])
            if now["digest"] != standing["digest"]:
                return Ending(
                    now["number"], now["digest"], "it has taken another document, or started again, meanwhile"
                )
        reason = f"it has not taken the next one within {WAIT_S:g} s; its log may say why"
        return Ending(standing["number"], found.digest, reason)

    def _fetch_epoch(self) -> dict[str, Any]:
        return fetch_epoch(self.metrics[0], self.name, ASK_S)


def read_rules(spec: Mapping[str, Any]) -> dict[Phase, LiveMap]:
    """Return phase -> what its units' maps must keep, from a deployment's spec; empty if no unit changes its map.

    Raises WrongDay if the rules cannot be followed.
    """
    found = {}
    for phase, settings in spec.get("liveMaps", {}).get("phases", {}).items():
        try:
            found[phase] = LiveMap.model_validate_json(json.dumps(settings["rules"]))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(each) for each in ("spec.liveMaps.phases", phase, "rules", *first["loc"]))
            raise WrongDay(f"{place}: {first['msg']}; render the plan again") from None
    return found


def serving_units(
    api: Api, deployment: Manifest, rules: Mapping[Phase, LiveMap], units: Sequence[LiveUnit], pods: Sequence[Manifest]
) -> "Iterator[ServingUnit]":
    """Yield the units that serve and can change their maps, from the deployment's `units` and all their `pods`.

    `rules` are those of the spec.
    """
    phases = deployment["spec"]["liveMaps"]["phases"]

    def hand_in(unit: str, content: str) -> None:
        try:
            write_next_epoch(api, deployment, unit, content)
        except ProviderError as error:
            raise ValueError(f"its next epoch cannot be written: {error}") from None

    for unit in units:
        own = [pod for pod in pods if pod["metadata"]["labels"].get(names.UNIT_LABEL) == unit.name]
        addresses = [address for pod in own if (address := (pod.get("status") or {}).get("podIP"))]
        if unit.phase not in phases or not unit.is_ready or len(addresses) != unit.num_nodes:
            continue
        settings = phases[unit.phase]
        ports = range(names.Ports.METRICS, names.Ports.METRICS + settings["ranksPerPod"])
        urls = tuple(f"http://{_host(address)}:{port}/metrics" for address in addresses for port in ports)
        life = tuple(sorted(map(_life, own)))
        yield _Unit(unit.name, len(urls), rules[unit.phase], life, urls, hand_in)


def update_maps(written: Sequence[Mapping[str, Any]], visit: "Visit | None") -> list[dict[str, Any]]:
    """Return the status' `expertMaps` after a visit; those `written` before it, if `visit` is None."""
    found = {each["unit"]: dict(each) for each in written}
    if visit is not None and visit.in_service is not None:
        epoch, digest = visit.in_service.epoch, digest_of(visit.in_service.rows)
        before = found.get(visit.unit, {})
        is_same = (before.get("epoch"), before.get("inService")) == (epoch, digest)
        kept = {key: before[key] for key in ("adopted", "decision") if key in before and is_same}
        if epoch and not is_same and not visit.has_switched:
            kept = {"adopted": FROM_OTHERS}
        news = {"adopted" if visit.has_switched else "decision": visit.said} if visit.said else {}
        found[visit.unit] = {"unit": visit.unit, "inService": digest, "epoch": epoch} | kept | news
    return [found[unit] for unit in sorted(found)]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _life(pod: Manifest) -> tuple[str, int]:
    """Return a pod's uid and how often its containers have started again."""
    restarts = sum(each["restartCount"] for each in pod["status"].get("containerStatuses") or ())
    return pod["metadata"]["uid"], restarts

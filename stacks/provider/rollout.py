"""Rolling updates: one unit of a phase at a time, and none after one that did not become ready.

The gateway is one of these too, alone in its phase. Units whose objects withhold a new template are not: the
controller gives them their turns.

A unit is updated in its turn if its pods change, and its nodes and the format of its KV stay. Then old and new units
serve together, and each phase lacks one unit at most. A unit that does not become ready is restored.

All other units change at once: with another KV format old units cannot work with new ones, and with other nodes a unit
may need those of one that waits for its turn. What format an engine other than ours gives its KV follows from its
version too, so its units change at once if that changes.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest
from stacks.kube.object_set import Manifests, main_object
from stacks.kube.readiness import num_withheld

__all__ = ["Rollout", "rolled_phase"]

PHASE_LABEL = "tidemill.dev/phase"
COMPONENT_LABEL, GATEWAY = "app.kubernetes.io/component", "gateway"
LOOK_S = 1.0  # between two checks whether the user has cancelled


class Rollout:
    """Lets the units of each phase update one at a time, in one run of Pulumi."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._condition = threading.Condition()
        self._changing: dict[str, str] = {}  # phase -> the unit whose turn it is
        self._failed: str | None = None

    @contextmanager
    def turn(self, phase: str, unit: str, report: Callable[[str], None]) -> Iterator[None]:
        """Update `unit` in a `with` block, once no other unit of its phase is being updated.

        Raises ProviderError if another unit has failed, or when cancelled.
        """
        with self._condition:
            while (other := self._changing.get(phase)) and not self._is_over():
                report(f"its turn comes after {other}")
                self._condition.wait(LOOK_S)
            if self._is_over():
                raise ProviderError(f"{unit} was left as it was: {self._failed or 'the run'} {self._end_reason()}")
            self._changing[phase] = unit
        try:
            yield
        finally:
            with self._condition:
                del self._changing[phase]
                self._condition.notify_all()

    def fail(self, unit: str) -> None:
        """Record that `unit` has failed, so that no other unit begins its update."""
        with self._condition:
            self._failed = unit
            self._condition.notify_all()

    def _is_over(self) -> bool:
        return self._failed is not None or self._cancelled.is_set()

    def _end_reason(self) -> str:
        return "did not get ready" if self._failed else "was cancelled"


def rolled_phase(old: Manifests, new: Manifests) -> str | None:
    """Return the phase (or `gateway`) in which this update waits its turn, since its units restart one at a time.

    Return None if nothing restarts now: the unit is new or leaves, or the controller withholds its template. Return
    None, too, if nodes or the KV format change: then the phase's units change at once.
    """
    if not old or not new:
        return None
    before, after = main_object(old)[1], main_object(new)[1]
    labels = after["metadata"].get("labels") or {}
    phase = labels.get(PHASE_LABEL) or (GATEWAY if labels.get(COMPONENT_LABEL) == GATEWAY else None)
    if phase is None or _template(before) == _template(after) or num_withheld(after):
        return None
    kv = _kv_format(new)
    keeps = _node_fields(before) == _node_fields(after) and kv is not None and kv == _kv_format(old)
    return str(phase) if keeps else None


def _template(unit: Manifest) -> Mapping[str, Any]:
    spec = unit.get("spec") or {}
    found: Mapping[str, Any] = (
        (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or spec.get("template") or {}
    )
    return found


def _node_fields(unit: Manifest) -> tuple[Any, Any]:
    """Return (number of nodes, affinity that selects them), the fields that determine a unit's nodes."""
    spec = unit.get("spec") or {}
    size = (spec.get("leaderWorkerTemplate") or {}).get("size", spec.get("replicas"))
    return size, (_template(unit).get("spec") or {}).get("affinity")


def _kv_format(manifests: Manifests) -> tuple[Any, Any] | None:
    """Return (KV digest, engine) from a unit's launch file, which together determine the format of its KV.

    None without a launch file.
    """
    for each in manifests.values():
        for text in (each.get("data") or {}).values() if each.get("kind") == "ConfigMap" else ():
            document = _launch_document(text)
            if "kv_digest" in document:
                return document["kv_digest"], document.get("engine")
    return None


def _launch_document(text: str) -> dict[str, Any]:
    """Return the keys of a launch file before its expert map; empty if the text is no launch file.

    The map is the last key, and lies in another ConfigMap if it is large, so the text may be cut off before it.
    """
    for whole in (text, text.rstrip().removesuffix(",") + "}"):
        with suppress(ValueError):
            document = json.loads(whole)
            return document if isinstance(document, dict) else {}
    return {}

"""One controller at a time: whoever holds a Lease acts, and the others wait until it is released or expires.

It expires for each of them once they have seen it unchanged for `LASTS_S`. The times and the duration in it are not
read, since the clock of the holder may be wrong.

Two that act at once would do no harm: both read everything anew and decide alike; they would only report everything
twice. So losing a lease is no error.

Rejected: `kubernetes.leaderelection`. It runs threads, keeps its record in an annotation of a ConfigMap, and does not
let go when it ends.

Source: kubernetes/client-go tools/leaderelection/leaderelection.go, `observedTime` and `isLeaseValid`.
"""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from stacks.kube.api import Api
from stacks.kube.errors import RefusedError
from stacks.kube.manifest import Manifest, Reference

__all__ = ["LASTS_S", "Lease"]

LASTS_S = 15  # Kubernetes' own controllers' default: --leader-elect-lease-duration of kube-controller-manager
API_VERSION = "coordination.k8s.io/v1"
MOST_TRANSITIONS = 2**31 - 1  # the field `leaseTransitions` is an int32


class Lease:
    """A Kubernetes Lease, its would-be `holder`, and the field `manager` that writes it."""

    def __init__(self, namespace: str, name: str, holder: str, manager: str) -> None:
        self.reference = Reference(API_VERSION, "Lease", namespace, name)
        self.holder, self.manager = holder, manager
        self._last_spec: Manifest = {}  # the Lease's spec at the last look
        self._unchanged_since = 0.0

    def acquire(self, api: Api, now: float) -> bool:
        """Take or renew the lease. Return False if another controller holds it.

        Raises ProviderError if the cluster fails.
        """
        live = api.get(self.reference)
        if live is not None and self._is_held_by_another(live["spec"], now):
            return False
        return self._write(api, live, self.holder, now)

    def release(self, api: Api, now: float) -> None:
        """Release the lease, so that another controller can take it at once.

        Raises ProviderError if the cluster fails.
        """
        live = api.get(self.reference)
        if live is not None and live["spec"].get("holderIdentity") == self.holder:
            self._write(api, live, "", now)

    def _is_held_by_another(self, spec: Manifest, now: float) -> bool:
        """Return whether another controller still holds the lease, and remember since when it has not changed.

        If the clock was set back, its time counts anew.
        """
        if spec != self._last_spec or now < self._unchanged_since:
            self._last_spec, self._unchanged_since = spec, now
        return spec.get("holderIdentity") not in (None, "", self.holder) and now < self._unchanged_since + LASTS_S

    def _write(self, api: Api, live: Manifest | None, holder: str, now: float) -> bool:
        """Write the lease, unless it was written by others since it was read. Return whether it was written."""
        was = live["spec"] if live is not None else {}
        is_new = was.get("holderIdentity") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": LASTS_S,
            "renewTime": _micro_time(now),
            "acquireTime": _micro_time(now) if is_new else was.get("acquireTime"),
            "leaseTransitions": min(
                int(was.get("leaseTransitions") or 0) + int(is_new and bool(holder)), MOST_TRANSITIONS
            ),
        }
        metadata: dict[str, Any] = {"name": self.reference.name, "namespace": self.reference.namespace}
        try:
            if live is None:
                new = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
                api.create(new, manager=self.manager)
            else:
                version = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}}
                api.merge(self.reference, version | {"spec": spec}, manager=self.manager)
        except RefusedError as error:
            if error.status == HTTPStatus.CONFLICT or (error.status == HTTPStatus.NOT_FOUND and live is not None):
                return False  # somebody else has written it first, or it was deleted
            raise
        return True


def _micro_time(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

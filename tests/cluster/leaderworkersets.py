"""LeaderWorkerSet as an API: its CustomResourceDefinitions, applied from the pinned module."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import yaml
from kubernetes.client import ApiClient

from tests.cluster.build import LWS_CRDS, obtain
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import Cluster

__all__ = ["serve_leaderworkersets"]

SERVED_TIMEOUT_S = 60


def serve_leaderworkersets(control_plane: ControlPlane) -> None:
    """Apply the CRDs and wait until discovery serves what they define."""
    definitions = list(_definitions())
    cluster = Cluster(control_plane.api, str(control_plane.daemons.folder / "discovery-of-crds.json"))
    for each in definitions:
        cluster.apply(each)
    for path in sorted({path for each in definitions for path in _served_paths(each)}):
        control_plane.daemons.wait_until(
            lambda path=path: _is_served(control_plane.api, path), f"{path} is served", SERVED_TIMEOUT_S
        )


def _definitions() -> Iterator[dict[str, Any]]:
    """1.3 MB of YAML: 0.4 s with libyaml, seconds without."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(obtain(LWS_CRDS).glob("*.yaml")):
        yield from filter(None, yaml.load_all(path.read_text(), Loader=loader))


def _served_paths(definition: dict[str, Any]) -> Iterator[str]:
    spec = definition["spec"]
    return (f"/apis/{spec['group']}/{each['name']}" for each in spec["versions"] if each["served"])


def _is_served(api: ApiClient, path: str) -> bool:
    return api.call_api("GET", f"{api.configuration.host}{path}", _request_timeout=5).status == HTTPStatus.OK

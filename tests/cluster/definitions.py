"""CustomResourceDefinitions of pinned modules: applied, and waited for until discovery serves what they define."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import ApiClient

from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import Objects

__all__ = ["OUR_DEFINITION", "serve_definitions"]

SERVED_TIMEOUT_S = 60
OUR_DEFINITION = Path(__file__).parents[2] / "stacks" / "controller" / "definition.yaml"


def serve_definitions(control_plane: ControlPlane, files: Iterable[Path]) -> None:
    """Apply the definitions in `files`. Raises NotReady when the API server does not serve them in time."""
    definitions = list(_definitions(files))
    objects = Objects(control_plane.api, str(control_plane.folder / "discovery-of-crds.json"))
    for each in definitions:
        objects.apply(each)
    for path in sorted({path for each in definitions for path in _served_paths(each)}):
        control_plane.daemons.wait_until(
            lambda path=path: _is_served(control_plane.api, path), f"{path} is served", SERVED_TIMEOUT_S
        )


def _definitions(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """LeaderWorkerSet's are 1.3 MB of YAML: 0.4 s with libyaml, seconds without."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in files:
        yield from filter(None, yaml.load_all(path.read_text(), Loader=loader))


def _served_paths(definition: dict[str, Any]) -> Iterator[str]:
    spec = definition["spec"]
    return (f"/apis/{spec['group']}/{each['name']}" for each in spec["versions"] if each["served"])


def _is_served(api: ApiClient, path: str) -> bool:
    return api.call_api("GET", f"{api.configuration.host}{path}", _request_timeout=5).status == HTTPStatus.OK

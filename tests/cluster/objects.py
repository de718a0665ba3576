"""Writing objects to an API server as Tidemill will: server-side apply, strict, under our name."""

from typing import Any

from kubernetes.client import ApiClient
from kubernetes.dynamic import DynamicClient, Resource

__all__ = ["FIELD_MANAGER", "Objects", "assert_holds"]

FIELD_MANAGER = "tidemill"

Object = dict[str, Any]


class Objects:
    """Plain documents in and out. It learns the server's kinds when it is made: make it after the CRDs are served."""

    def __init__(self, api: ApiClient, discovery_cache: str) -> None:
        self._client = DynamicClient(api, cache_file=discovery_cache)

    def apply(self, document: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply; what the server makes of it. An unknown field is an error, a conflict too."""
        options = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), *_dry_run(dry_run)]
        return self._resource(document).server_side_apply(body=document, query_params=options).to_dict()

    def create(self, document: Object, *, dry_run: bool = False) -> Object:
        """Create; the object as the server would store it."""
        options = [("fieldValidation", "Strict"), *_dry_run(dry_run)]
        return self._resource(document).create(body=document, query_params=options).to_dict()

    def read(self, document: Object) -> Object:
        """The stored object of that kind and name."""
        metadata = document["metadata"]
        return self._resource(document).get(name=metadata["name"], namespace=metadata.get("namespace")).to_dict()

    def _resource(self, document: Object) -> Resource:
        return self._client.resources.get(api_version=document["apiVersion"], kind=document["kind"])


def assert_holds(stored: Any, ours: Any, path: str) -> None:
    """Every value in `ours` is in `stored`, which may have more keys, but not more or other list items."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert key in stored, f"{path}.{key} is not stored"
            assert_holds(stored[key], value, f"{path}.{key}")
    elif isinstance(ours, list):
        assert len(stored) == len(ours), path
        for index, value in enumerate(ours):
            assert_holds(stored[index], value, f"{path}[{index}]")
    else:
        assert stored == ours, path


def _dry_run(wanted: bool) -> list[tuple[str, str]]:
    return [("dryRun", "All")] if wanted else []

"""The provider's configuration, and a check that its cluster can take the plan.

    context   a context of the kubeconfig; its current one unless given
    kinds     what the plan needs, as `apps/v1/Deployment`: a list, or the JSON of one

The cluster is checked before the first object is touched, so that a problem of the whole cluster is reported once and
not by every object. Rights are checked object by object, in the preview of each.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.kube.api import Api, connect
from stacks.kube.errors import NotServedError, ProviderError
from stacks.provider.wire import has_unknown

__all__ = ["ClusterConfig", "Failure", "check"]

KEYS = {"context", "kinds", "version"}  # `version` is the engine's


@dataclass(frozen=True)
class Failure:
    """One wrong key and the reason; the key is empty if the sentence needs none."""

    key: str
    reason: str


@dataclass(frozen=True)
class ClusterConfig:
    """The cluster's configuration as the user gave it, empty where not given."""

    context: str
    kinds: tuple[str, ...]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ClusterConfig":
        """Raises ValueError with the key and what it should be."""
        context, kinds = values.get("context") or "", _parse_kinds(values.get("kinds") or [])
        if not isinstance(context, str):
            raise ValueError("context", "must be the name of a context of the kubeconfig")
        if not isinstance(kinds, list) or not all(isinstance(each, str) and "/" in each for each in kinds):
            raise ValueError("kinds", 'must be a list such as ["apps/v1/Deployment", "v1/Service"]')
        return cls(context, tuple(kinds))


def check(values: Mapping[str, Any]) -> list[Failure]:
    """Return all failures, one for each cause. Empty if not all values are known yet."""
    if unknown := sorted(values.keys() - KEYS):
        return [Failure(each, f"is unknown; the keys are {', '.join(sorted(KEYS - {'version'}))}") for each in unknown]
    if has_unknown(dict(values)):
        return []
    try:
        config = ClusterConfig.parse(values)
    except ValueError as error:
        return [Failure(*error.args)]
    try:
        api = connect(config.context or None)
        api.require_answer()
        return list(_find_unserved(api, config))
    except ProviderError as error:
        return [Failure("", str(error))]


def _parse_kinds(kinds: Any) -> Any:
    """Return the list that a JSON text holds; anything else as it is."""
    try:
        return json.loads(kinds) if isinstance(kinds, str) else kinds
    except json.JSONDecodeError:
        return kinds


def _find_unserved(api: Api, config: ClusterConfig) -> list[Failure]:
    failures = []
    for each in config.kinds:
        api_version, _, kind = each.rpartition("/")
        try:
            api.require_kind(api_version, kind)
        except NotServedError as error:
            failures.append(Failure("", str(error)))
    return failures

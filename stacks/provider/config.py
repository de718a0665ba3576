"""The provider's configuration, and a check that its cluster can take the plan.

    kubeconfig   its content or path; that of KUBECONFIG or of the home folder unless given
    context      one of its contexts; the current one unless given
    kinds        what the plan needs, as `apps/v1/Deployment`: a list, or the JSON of one
    adopt        whether objects of the plan that kubectl or Git has applied are taken over

The cluster is checked before the first object is touched, so that a problem of the whole cluster is reported once and
not by every object. Rights are checked object by object, in the preview of each. Without `kinds` nothing is checked:
Pulumi makes such a provider for each program that has components, and these bring their own cluster along.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.kube.api import Api, connect
from stacks.kube.errors import NotServedError, ProviderError
from stacks.provider.wire import has_unknown

__all__ = ["ClusterConfig", "Failure", "check"]

KEYS = {"adopt", "context", "kinds", "kubeconfig", "version"}  # `version` is the engine's


@dataclass(frozen=True)
class Failure:
    """A mistake in the configuration: the wrong key (empty if no single key is wrong) and the reason."""

    key: str
    reason: str


@dataclass(frozen=True)
class ClusterConfig:
    """The user's configuration of the provider's cluster. Values that the user left out are empty."""

    kubeconfig: str
    context: str
    kinds: tuple[str, ...]
    adopts: bool

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "ClusterConfig":
        """Return the configuration in `values`. Raises ValueError(key, rule) if a value is wrong."""
        kubeconfig, context = values.get("kubeconfig") or "", values.get("context") or ""
        kinds, adopts = _parse_json(values.get("kinds") or []), _parse_json(values.get("adopt") or False)
        if not isinstance(kubeconfig, str):
            raise ValueError("kubeconfig", "must be the content or the path of a kubeconfig")
        if not isinstance(context, str):
            raise ValueError("context", "must be the name of a context of the kubeconfig")
        if not isinstance(kinds, list) or not all(isinstance(each, str) and "/" in each for each in kinds):
            raise ValueError("kinds", 'must be a list such as ["apps/v1/Deployment", "v1/Service"]')
        if not isinstance(adopts, bool):
            raise ValueError("adopt", "must be true or false")
        return cls(kubeconfig, context, tuple(kinds), adopts)

    def connect(self) -> Api:
        """Return the cluster's `Api`. No request is made yet. Raises KubeconfigError if the kubeconfig is unusable."""
        return connect(self.context or None, self.kubeconfig or None)


def check(values: Mapping[str, Any]) -> list[Failure]:
    """Return all mistakes in a configuration. If some values are not known yet, only unknown keys are reported."""
    if unknown := sorted(values.keys() - KEYS):
        return [Failure(each, f"is unknown; the keys are {', '.join(sorted(KEYS - {'version'}))}") for each in unknown]
    if has_unknown(dict(values)):
        return []
    try:
        config = ClusterConfig.parse(values)
    except ValueError as error:
        return [Failure(*error.args)]
    if not config.kinds:
        return []
    try:
        api = config.connect()
        api.require_answer()
        return list(_find_unserved(api, config))
    except ProviderError as error:
        return [Failure("", str(error))]


def _parse_json(given: Any) -> Any:
    """Return the value of `given` if it is JSON text, else `given` itself."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError:
        return given


def _find_unserved(api: Api, config: ClusterConfig) -> list[Failure]:
    failures = []
    for each in config.kinds:
        api_version, _, kind = each.rpartition("/")
        try:
            api.require_kind(api_version, kind)
        except NotServedError as error:
            failures.append(Failure("", str(error)))
    return failures

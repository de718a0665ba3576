"""Finds units whose pods cannot exchange KV with units of the newest template, and which of the two the gateway serves.

our runtime       the KV formats differ: `kv_digest` in the launch files that pods and objects mount. A gateway
                  serves the format of its own launch file
another engine    the images differ, since its version decides what KV is; its router does not look
"""

import re
from collections.abc import Callable, Mapping, Sequence

from planner.facts import names
from stacks.controller.situation import Gateway
from stacks.kube.api import Api
from stacks.kube.manifest import Manifest, mounted_configs, object_name
from stacks.kube.readiness import missing

__all__ = ["find_other_kv_formats"]

KV_DIGEST = re.compile(r'"kv_digest": "([^"]+)"')  # in a launch file, which may be cut into several ConfigMaps

Formats = Mapping[str, str]  # a ConfigMap with a launch file -> the KV format in it


def find_other_kv_formats(
    api: Api, deployment: Manifest, units: Sequence[Manifest], pods: Sequence[Manifest]
) -> tuple[set[str], Gateway]:
    """Return (units with a pod whose KV format is not their newest template's, which format the gateway serves).

    The gateway serves the `newest` format or still the `former` one. It is `blind` where units exchange KV only with
    units of their own image. Raises ProviderError if the cluster cannot be asked.
    """
    if "sameImage" in deployment["spec"]:
        images = {object_name(each): _image(each["spec"]["leaderWorkerTemplate"]["workerTemplate"]) for each in units}
        return _find_differing(pods, images, _image), "blind"
    if not pods:
        return set(), "newest"
    owners = ",".join(sorted({_owner(each) for each in pods}))
    formats = _list_formats(api, deployment, f"{names.UNIT_LABEL} in ({owners})")
    newest = {object_name(each): _format(each, formats) for each in units}
    differing = _find_differing(pods, newest, lambda pod: _format(pod, formats))
    has_changed = not differing or _served_formats(api, deployment) == {newest[unit] for unit in differing}
    return differing, "newest" if has_changed else "former"


def _find_differing(
    pods: Sequence[Manifest], newest: Mapping[str, str | None], read: Callable[[Manifest], str | None]
) -> set[str]:
    """Return the units with a pod for which `read` returns another value than `newest` has for the unit.

    An unknown value (None) counts as equal.
    """
    found = ((_owner(pod), read(pod)) for pod in pods)
    return {unit for unit, its in found if None not in (its, newest.get(unit)) and its != newest[unit]}


def _served_formats(api: Api, deployment: Manifest) -> set[str | None] | None:
    """Return the KV formats that gateways serve; None while a gateway is being replaced, or if there is none."""
    selector = ",".join(f"{key}={value}" for key, value in names.gateway_selector(object_name(deployment)).items())
    gateways = api.list_all("apps/v1", "Deployment", deployment["metadata"]["namespace"], labelSelector=selector)
    if not gateways or any(missing(each) for each in gateways):
        return None
    formats = _list_formats(api, deployment, selector)
    return {_format(each, formats) for each in gateways}


def _list_formats(api: Api, deployment: Manifest, selector: str) -> Formats:
    configs = api.list_all("v1", "ConfigMap", deployment["metadata"]["namespace"], labelSelector=selector)
    texts = {object_name(each): "".join((each.get("data") or {}).values()) for each in configs}
    return {name: found[1] for name, text in texts.items() if (found := KV_DIGEST.search(text))}


def _format(user: Manifest, formats: Formats) -> str | None:
    """Return the KV format in the launch file that a pod or an object mounts; None if that file is gone."""
    return next((formats[name] for name in mounted_configs(user) if name in formats), None)


def _image(pod: Manifest) -> str | None:
    """Return the engine's image, that of the first container of a pod or a pod template; None if it has none."""
    image: str | None = pod["spec"]["containers"][0].get("image")
    return image


def _owner(pod: Manifest) -> str:
    unit: str = pod["metadata"]["labels"][names.UNIT_LABEL]
    return unit

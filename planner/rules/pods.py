"""The rules of what `kubernetes` says of a unit's pods."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from planner.facts.names import CONTAINER_VARIABLES
from planner.facts.terms import PHASES
from planner.problems.finding import Finding
from planner.problems.fix import HERE, Fix, for_example, nearest, removal
from planner.rules.object_names import (
    DNS_1123,
    MAX_DNS_LABEL,
    MAX_NAME_PART,
    is_label_value,
    is_object_name,
    is_qualified_name,
    no_object_name,
    qualified_part,
)
from planner.rules.rule import Rule
from planner.rules.written import Written

__all__ = ["RULES"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_KEY = re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]{1,253}")  # k8s.io/apimachinery IsConfigMapKey
RESOURCE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
MAX_RESOURCE_NAME = 63
NAME_FORM = "letters and digits, with hyphens, dots and _ between them"
RESOURCES = {"kubernetes.gpu_resource": "nvidia.com", "kubernetes.rdma.resource": "rdma"}  # path -> the usual domain
LISTED = {"kubernetes.networks": "a network", "kubernetes.nics.hca": "a device"}
REFERENCE = {"secret": "tokens", "key": "token"}


def variables_have_names(c: Written) -> Iterator[Finding]:
    """Programs read no others."""
    env: Mapping[str, Any] = c["kubernetes.env"]
    for name in env:
        if not VARIABLE.fullmatch(name):
            right = re.sub(r"[^A-Za-z0-9_]+", "_", name).lstrip("0123456789") or "VARIABLE"
            rule = "S440 must be letters, digits and _, and not start with a digit"
            fix = f"did you mean {right}?"  # no change, which would print the value
            reason = "other names are not valid for environment variables"
            yield Finding(f"kubernetes.env.{name}", None, rule, reason, fix)


def variables_are_text_or_of_a_secret(c: Written) -> Iterator[Finding]:
    """YAML's numbers and truths are not what a program reads."""
    env: Mapping[str, Any] = c["kubernetes.env"]
    for name, value in env.items():
        path = f"kubernetes.env.{name}"
        if not isinstance(value, dict | list | str):
            (broken,) = _text(path, value)
            yield replace(broken, fix="put it in quotes")  # `_text` would print it
        elif isinstance(value, dict | list) and not _is_reference(value):
            rule = "S442 must be text, or {secret: NAME, key: KEY}"
            yield Finding(path, None, rule, "there are no other choices", _meant_variable(value))
        elif isinstance(value, dict) and not is_object_name(value["secret"]):
            yield no_object_name(f"{path}.secret", value["secret"])
        elif isinstance(value, dict) and not SECRET_KEY.fullmatch(value["key"]):
            rule = "S478 must be at most 253 letters, digits, hyphens, dots and _, and not begin with two dots"
            reason = "a Secret has no other keys"
            yield Finding(f"{path}.key", value["key"], rule, reason, "name the key as it stands in the Secret")


def own_variables_stay(c: Written) -> Iterator[Finding]:
    """The command line of a pod is made of them."""
    env: Mapping[str, Any] = c["kubernetes.env"]
    for name in env:
        if name in CONTAINER_VARIABLES:
            rule = f"S443 must be none of {', '.join(CONTAINER_VARIABLES)}"
            reason = "the pod's command uses these variables"
            yield Finding(f"kubernetes.env.{name}", env[name], rule, reason, removal())


def labels_are_text(c: Written) -> Iterator[Finding]:
    """Refuse what the API server would refuse."""
    labels: Mapping[str, Any] = c["kubernetes.node_selector"]
    for name, value in labels.items():
        yield from _text(f"kubernetes.node_selector.{name}", value)


def labels_have_names(c: Written) -> Iterator[Finding]:
    """Refuse what the API server would refuse."""
    labels: Mapping[str, Any] = c["kubernetes.node_selector"]
    meant = {key: _meant_name(key) for key in labels if not is_qualified_name(key)}
    taken = Counter([*labels, *meant.values()])
    renamed = {key: right for key, right in meant.items() if right is not None and taken[right] == 1}
    change = {"kubernetes.node_selector": {renamed.get(key, key): value for key, value in labels.items()}}
    for key in meant:  # a change renames all: no path leads to one with dots
        fix = Fix(f"did you mean {renamed[key]}?", (change,)) if key in renamed else removal()
        rule = f"S464 must be at most {MAX_NAME_PART} {NAME_FORM}, or PREFIX/ and such a name"
        reason, path = "Kubernetes has no label of another name", f"kubernetes.node_selector.{key}"
        yield Finding(path, labels[key], rule, reason, fix)


def labels_have_values(c: Written) -> Iterator[Finding]:
    """A pod that asks for another value is refused."""
    labels: Mapping[str, Any] = c["kubernetes.node_selector"]
    for name, value in labels.items():
        yield from _label_value(f"kubernetes.node_selector.{name}", value)


def networks_are_of_pods_with_their_own(c: Written) -> Iterator[Finding]:
    """Multus adds interfaces to a pod's network; the node's is not the pod's."""
    networks: Sequence[str] = c["kubernetes.networks"]
    host_network: bool = c["kubernetes.host_network"]
    if not networks or not host_network:
        return
    fix = Fix("remove networks or host_network", ({HERE: None}, {"kubernetes.host_network": None}))
    reason = "with host_network, pods use the node's network interfaces and cannot join others"
    yield Finding("kubernetes.networks", networks, "S446 must not be combined with host_network: true", reason, fix)


def names_are_listed_one_by_one(c: Written, path: str) -> Iterator[Finding]:
    """They end up in one annotation or variable, between commas."""
    written: Sequence[str] = c[path]
    names = [name for item in written for name in re.split(r"[\s,]+", item) if name]
    wrong = next((index for index, item in enumerate(written) if item not in names), None)
    if wrong is None:
        return
    fix = Fix(f"write [{', '.join(names)}]", ({path: names},)) if names else removal(path)
    rule = f"S454 must be the name of {LISTED[path]}, without commas and spaces"
    yield Finding(f"{path}.{wrong}", written[wrong], rule, "write one name per list item", fix)


def networks_are_multus_names(c: Written) -> Iterator[Finding]:
    """Multus does not start a pod whose annotation has others, and reads JSON where it starts with a bracket."""
    networks: Sequence[str] = c["kubernetes.networks"]
    for index, network in enumerate(networks):
        if not re.fullmatch(r"[^\s,]+", network) or _is_network(network):
            continue  # the former is said by another rule
        right = network.lower().replace("_", "-")
        fix = nearest(right) if _is_network(right) else removal(f"kubernetes.networks.{index}")
        rule = "S467 must be NAME, NAMESPACE/NAME or either with @INTERFACE, of lower-case letters, digits and hyphens"
        yield Finding(f"kubernetes.networks.{index}", network, rule, "Multus accepts no other network name", fix)


def cpus_are_no_devices(c: Written) -> Iterator[Finding]:
    """No plugin hands out CPUs."""
    resource: str | None = c["kubernetes.gpu_resource"]
    gpu: str = c["cluster.gpu"]
    of_phases = {c.get(f"{phase}.gpu") for phase in PHASES}
    if resource is None or {gpu, *filter(None, of_phases)} != {"cpu"}:
        return
    rule = "S447 must not be combined with cluster.gpu: cpu"
    reason = "ranks on CPUs request no device"
    yield Finding("kubernetes.gpu_resource", resource, rule, reason, removal())


def resources_have_a_domain(c: Written, path: str) -> Iterator[Finding]:
    """Refuse what the API server would refuse."""
    written: str | None = c[path]
    prefix, _, name = (written or "").rpartition("/")
    if written is None or (is_object_name(prefix) and RESOURCE_NAME.fullmatch(name)):
        return
    right = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:MAX_RESOURCE_NAME].strip("-._") or "device"
    where = prefix.lower() if is_object_name(prefix.lower()) else RESOURCES[path]
    rule = "S448 must be DOMAIN/NAME, as nodes list the resources of device plugins"
    yield Finding(path, written, rule, "Kubernetes accepts no other resource name", nearest(f"{where}/{right}"))


def domains_are_of_gpus_that_join_nodes(c: Written) -> Iterator[Finding]:
    """A ComputeDomain shares GPU memory by NVLink, from node to node."""
    wanted: bool | None = c["kubernetes.compute_domain"]
    gpu = c.gpu
    if not wanted or gpu.nvlink_leaves_node:
        return
    reason = "their NVLink does not reach beyond a node"
    yield Finding("kubernetes.compute_domain", wanted, "S455 must be false on these GPUs", reason, removal())


def tolerations_are_kubernetes(c: Written, place: str) -> Iterator[Finding]:
    """Refuse what the API server would refuse: a value goes with Equal and a key."""
    key, value = c[f"{place}.key"], c[f"{place}.value"]
    exists, effect, seconds = c[f"{place}.operator"] == "Exists", c[f"{place}.effect"], c[f"{place}.seconds"]
    if exists and value is not None:
        rule, reason = "S451 must not be combined with operator: Exists", "with Exists, every value matches"
        fix = removal(f"{place}.value", words="remove value")
        if key is not None:
            fix = Fix("remove value, or operator", ({f"{place}.value": None}, {f"{place}.operator": None}))
        yield Finding(f"{place}.value", value, rule, reason, fix)
    elif not exists and key is None:
        rule = "S452 must have a key, or operator: Exists"
        reason = "without operator, a toleration compares the value of a key"
        fix = Fix("write operator: Exists", ({f"{place}.operator": "Exists", f"{place}.value": None},))
        yield Finding(place, c[place], rule, reason, fix)
    if key is not None and not is_qualified_name(key):
        right = _meant_name(key)
        rule = f"S464 must be at most {MAX_NAME_PART} {NAME_FORM}, or PREFIX/ and such a name"
        fix = nearest(right) if right else removal()
        yield Finding(f"{place}.key", key, rule, "Kubernetes has no taint of another name", fix)
    yield from _label_value(f"{place}.value", value)
    if seconds is not None and effect != "NoExecute":
        fix = Fix("write effect: NoExecute, or remove it", ({f"{place}.effect": "NoExecute"}, {HERE: None}))
        rule, reason = "S453 must come with effect: NoExecute", "only NoExecute taints evict running pods"
        yield Finding(f"{place}.seconds", seconds, rule, reason, fix)


def queue_is_a_label(c: Written) -> Iterator[Finding]:
    """Kueue reads it from a label."""
    name: str | None = c["kubernetes.queue"]
    if name is None or (DNS_1123.fullmatch(name) and len(name) <= MAX_DNS_LABEL):
        return
    rule = f"S456 must be at most {MAX_DNS_LABEL} lower-case letters, digits and hyphens (DNS-1123)"
    yield Finding("kubernetes.queue", name, rule, "Kueue accepts no other queue name", "write the name of a LocalQueue")


def _label_value(path: str, value: Any) -> Iterator[Finding]:
    """What is wrong with a text that is no value of a label, nor of a taint."""
    if isinstance(value, str) and not is_label_value(value):
        right = qualified_part(value)
        rule = f"S465 must be at most {MAX_NAME_PART} {NAME_FORM}"
        yield Finding(path, value, rule, "Kubernetes accepts no other value", nearest(right) if right else removal())


def _meant_name(key: str) -> str | None:
    """The name that `key` is probably; None where there is none."""
    prefix, slash, name = key.rpartition("/")
    right = f"{prefix.lower()}{slash}{qualified_part(name)}"
    return right if is_qualified_name(right) else None


def _text(path: str, value: Any) -> Iterator[Finding]:
    """What is wrong with a value that is no text."""
    if isinstance(value, str):
        return
    rule = "S441 must be text"
    if isinstance(value, dict | list):
        yield Finding(path, value, rule, "it has parts", removal())
        return
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    found = "nothing" if value is None else "true or false" if isinstance(value, bool) else "a number"
    yield Finding(path, value, rule, f"it is {found}", Fix(f'nearest: "{text}"', ({HERE: text},)))


def _is_reference(value: Any) -> TypeGuard[dict[str, str]]:
    return (
        isinstance(value, dict) and value.keys() == REFERENCE.keys() and all(isinstance(v, str) for v in value.values())
    )


def _meant_variable(value: Any) -> Fix | str:
    """Offer what a variable as Kubernetes writes it is here, without its text, which may be a secret."""
    section = value if isinstance(value, dict) else {}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "write its items as one text, with commas between them"
    if isinstance(section.get("value"), str) and len(section) == 1:
        return "write what stands at value, without the key"
    source = section.get("valueFrom", section)
    reference = source.get("secretKeyRef") if isinstance(source, dict) else None
    meant = {"secret": reference.get("name"), "key": reference.get("key")} if isinstance(reference, dict) else None
    if _is_reference(meant):
        return Fix(f"write {{secret: {meant['secret']}, key: {meant['key']}}}", ({HERE: meant},))
    return for_example("{secret: tokens, key: token}")


def _is_network(text: str) -> bool:
    """Return whether Multus can take this name apart."""
    network, at, interface = text.partition("@")
    labels = [*network.split("/", 1), *([interface] if at else [])]
    return all(len(label) <= MAX_DNS_LABEL and DNS_1123.fullmatch(label) for label in labels)


RULES = (
    Rule("S440", "fields", variables_have_names),
    Rule("S415 S441 S442 S478", "fields", variables_are_text_or_of_a_secret),
    Rule("S443", "fields", own_variables_stay),
    Rule("S441", "fields", labels_are_text),
    Rule("S464", "fields", labels_have_names),
    Rule("S465", "fields", labels_have_values),
    Rule("S446", "fields", networks_are_of_pods_with_their_own),
    Rule("S454", "fields", names_are_listed_one_by_one, tuple(LISTED)),
    Rule("S467", "fields", networks_are_multus_names),
    Rule("S447", "fields", cpus_are_no_devices),
    Rule("S448", "fields", resources_have_a_domain, tuple(RESOURCES)),
    Rule("S455", "resolved", domains_are_of_gpus_that_join_nodes),
    Rule("S451 S452 S453 S464 S465", "fields", tolerations_are_kubernetes, ["kubernetes.tolerations.*"]),
    Rule("S456", "fields", queue_is_a_label),
)

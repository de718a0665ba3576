"""The rules about what `kubernetes` says of a unit's pods: `layout_rules.py` asks them with the others."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from planner.facts.catalog import Gpu
from planner.facts.names import CONTAINER_VARIABLES
from planner.facts.terms import PHASES
from planner.problems.fix import HERE, Fix, for_example, nearest, removal
from planner.spec.object_names import (
    DNS_1123,
    MAX_DNS_LABEL,
    MAX_NAME_PART,
    is_label_value,
    is_object_name,
    is_qualified_name,
    no_object_name,
    qualified_part,
)
from planner.spec.rule import Broken, Partial, Rule, declare_in

__all__ = ["RULES"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_KEY = re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]{1,253}")  # k8s.io/apimachinery IsConfigMapKey
RESOURCE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
MAX_RESOURCE_NAME = 63
NAME_FORM = "letters and digits, with hyphens, dots and _ between them"
REFERENCE = {"secret": "tokens", "key": "token"}

RULES: list[Rule] = []
_reads = declare_in(RULES)


# Environment and labels


@_reads("kubernetes.env")
def variables_have_names(env: Mapping[str, Any]) -> Iterator[Broken]:
    """Programs read no others."""
    for name in env:
        if not VARIABLE.fullmatch(name):
            right = re.sub(r"[^A-Za-z0-9_]+", "_", name).lstrip("0123456789") or "VARIABLE"
            rule = "S440 must be letters, digits and _, and not start with a digit"
            fix = f"did you mean {right}?"  # no change, which would print the value
            yield Broken(rule, "other names are not valid for environment variables", fix, f"kubernetes.env.{name}")


@_reads("kubernetes.env")
def variables_are_text_or_of_a_secret(env: Mapping[str, Any]) -> Iterator[Broken]:
    """YAML's numbers and truths are not what a program reads."""
    for name, value in env.items():
        path = f"kubernetes.env.{name}"
        if not isinstance(value, dict | list | str):
            (broken,) = _text(path, value)
            yield replace(broken, fix="put it in quotes")  # `_text` would print it
        elif isinstance(value, dict | list) and not _is_reference(value):
            rule = "S442 must be text, or {secret: NAME, key: KEY}"
            yield Broken(rule, "there are no other choices", _meant_variable(value), path)
        elif isinstance(value, dict) and not is_object_name(value["secret"]):
            yield no_object_name(f"{path}.secret", value["secret"])
        elif isinstance(value, dict) and not SECRET_KEY.fullmatch(value["key"]):
            rule, reason = (
                "S478 must be at most 253 letters, digits, hyphens, dots and _, and not begin with two dots",
                "a Secret has no other keys",
            )
            yield Broken(rule, reason, "name the key as it stands in the Secret", f"{path}.key", value["key"])


@_reads("kubernetes.env")
def own_variables_stay(env: Mapping[str, Any]) -> Iterator[Broken]:
    """The command line of a pod is made of them."""
    for name in env:
        if name in CONTAINER_VARIABLES:
            rule = f"S443 must be none of {', '.join(CONTAINER_VARIABLES)}"
            yield Broken(rule, "the pod's command uses these variables", removal(), f"kubernetes.env.{name}", env[name])


@_reads("kubernetes.node_selector")
def labels_are_text(labels: Mapping[str, Any]) -> Iterator[Broken]:
    """Refuse what the API server would refuse."""
    for name, value in labels.items():
        yield from _text(f"kubernetes.node_selector.{name}", value)


@_reads("kubernetes.node_selector")
def labels_have_names(labels: Mapping[str, Any]) -> Iterator[Broken]:
    """Refuse what the API server would refuse."""
    meant = {key: _meant_name(key) for key in labels if not is_qualified_name(key)}
    taken = Counter([*labels, *meant.values()])
    renamed = {key: right for key, right in meant.items() if right is not None and taken[right] == 1}
    change = {"kubernetes.node_selector": {renamed.get(key, key): value for key, value in labels.items()}}
    for key in meant:  # a change renames all: no path leads to one with dots
        fix = Fix(f"did you mean {renamed[key]}?", (change,)) if key in renamed else removal()
        rule = f"S464 must be at most {MAX_NAME_PART} {NAME_FORM}, or PREFIX/ and such a name"
        reason, path = "Kubernetes has no label of another name", f"kubernetes.node_selector.{key}"
        yield Broken(rule, reason, fix, path, labels[key])


@_reads("kubernetes.node_selector")
def labels_have_values(labels: Mapping[str, Any]) -> Iterator[Broken]:
    """A pod that asks for another value is refused."""
    for name, value in labels.items():
        yield from _label_value(f"kubernetes.node_selector.{name}", value)


def _label_value(path: str, value: Any) -> Iterator[Broken]:
    """What is wrong with a text that is no value of a label, nor of a taint."""
    if isinstance(value, str) and not is_label_value(value):
        right = qualified_part(value)
        rule = f"S465 must be at most {MAX_NAME_PART} {NAME_FORM}"
        yield Broken(rule, "Kubernetes accepts no other value", nearest(right) if right else removal(), path, value)


def _meant_name(key: str) -> str | None:
    """The name that `key` is probably; None where there is none."""
    prefix, slash, name = key.rpartition("/")
    right = f"{prefix.lower()}{slash}{qualified_part(name)}"
    return right if is_qualified_name(right) else None


def _text(path: str, value: Any) -> Iterator[Broken]:
    """What is wrong with a value that is no text."""
    if isinstance(value, str):
        return
    rule = "S441 must be text"
    if isinstance(value, dict | list):
        yield Broken(rule, "it has parts", removal(), path, value)
        return
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    found = "nothing" if value is None else "true or false" if isinstance(value, bool) else "a number"
    yield Broken(rule, f"it is {found}", Fix(f'nearest: "{text}"', ({HERE: text},)), path, value)


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


# Networks and devices


@_reads("kubernetes.networks", "kubernetes.host_network")
def networks_are_of_pods_with_their_own(networks: Sequence[str], host_network: bool) -> Broken | None:
    """Multus adds interfaces to a pod's network; the node's is not the pod's."""
    if not networks or not host_network:
        return None
    fix = Fix("remove networks or host_network", ({HERE: None}, {"kubernetes.host_network": None}))
    return Broken(
        "S446 must not be combined with host_network: true",
        "with host_network, pods use the node's network interfaces and cannot join others",
        fix,
    )


@_reads("kubernetes.networks")
def networks_are_listed_one_by_one(networks: Sequence[str]) -> Broken | None:
    """They end up in one annotation, between commas."""
    return _one_by_one("kubernetes.networks", networks, "a network")


@_reads("kubernetes.networks")
def networks_are_multus_names(networks: Sequence[str]) -> Iterator[Broken]:
    """Multus does not start a pod whose annotation has others, and reads JSON where it starts with a bracket."""
    for index, network in enumerate(networks):
        if not re.fullmatch(r"[^\s,]+", network) or _is_network(network):
            continue  # the former is said by another rule
        right = network.lower().replace("_", "-")
        fix = nearest(right) if _is_network(right) else removal(f"kubernetes.networks.{index}")
        rule = "S467 must be NAME, NAMESPACE/NAME or either with @INTERFACE, of lower-case letters, digits and hyphens"
        yield Broken(rule, "Multus accepts no other network name", fix, f"kubernetes.networks.{index}", network)


def _is_network(text: str) -> bool:
    """Return whether Multus can take this name apart."""
    network, at, interface = text.partition("@")
    labels = [*network.split("/", 1), *([interface] if at else [])]
    return all(len(label) <= MAX_DNS_LABEL and DNS_1123.fullmatch(label) for label in labels)


@_reads("kubernetes.nics.hca")
def devices_are_listed_one_by_one(hca: Sequence[str]) -> Broken | None:
    """They end up in one variable, between commas."""
    return _one_by_one("kubernetes.nics.hca", hca, "a device")


def _one_by_one(path: str, written: Sequence[str], what: str) -> Broken | None:
    """What is wrong with items that hold several names, or none."""
    names = [name for item in written for name in re.split(r"[\s,]+", item) if name]
    wrong = next((index for index, item in enumerate(written) if item not in names), None)
    if wrong is None:
        return None
    fix = Fix(f"write [{', '.join(names)}]", ({path: names},)) if names else removal(path)
    rule = f"S454 must be the name of {what}, without commas and spaces"
    return Broken(rule, "write one name per list item", fix, f"{path}.{wrong}", written[wrong])


@_reads("kubernetes.gpu_resource", "cluster.gpu", *(f"{phase}.gpu?" for phase in PHASES))
def cpus_are_no_devices(resource: str | None, gpu: str, *of_phases: str | None) -> Broken | None:
    """No plugin hands out CPUs."""
    if resource is None or {gpu, *filter(None, of_phases)} != {"cpu"}:
        return None
    return Broken("S447 must not be combined with cluster.gpu: cpu", "ranks on CPUs request no device", removal())


@_reads("kubernetes.gpu_resource")
def gpu_resources_have_a_domain(resource: str | None) -> Broken | None:
    """Refuse what the API server would refuse."""
    return None if resource is None else _resource(resource, "nvidia.com")


@_reads("kubernetes.rdma.resource")
def rdma_resources_have_a_domain(resource: str) -> Broken | None:
    """Refuse what the API server would refuse."""
    return _resource(resource, "rdma")


def _resource(written: str, domain: str) -> Broken | None:
    prefix, _, name = written.rpartition("/")
    if is_object_name(prefix) and RESOURCE_NAME.fullmatch(name):
        return None
    right = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:MAX_RESOURCE_NAME].strip("-._") or "device"
    where = prefix.lower() if is_object_name(prefix.lower()) else domain
    rule = "S448 must be DOMAIN/NAME, as nodes list the resources of device plugins"
    return Broken(rule, "Kubernetes accepts no other resource name", nearest(f"{where}/{right}"))


@_reads("kubernetes.compute_domain", "cluster.device")
def domains_are_of_gpus_that_join_nodes(wanted: bool | None, gpu: Gpu) -> Broken | None:
    """A ComputeDomain shares GPU memory by NVLink, from node to node."""
    if not wanted or gpu.nvlink_leaves_node:
        return None
    return Broken("S455 must be false on these GPUs", "their NVLink does not reach beyond a node", removal())


# Where pods may run


@_reads("kubernetes.tolerations")
def tolerations_are_kubernetes(tolerations: Sequence[Mapping[str, Any]]) -> Iterator[Broken]:
    """Refuse what the API server would refuse: a value goes with Equal and a key."""
    for index, each in enumerate(tolerations):
        path, exists = f"kubernetes.tolerations.{index}", each.get("operator") == "Exists"
        if isinstance(each, Partial):
            continue
        if exists and each.get("value") is not None:
            fix = Fix("remove value, or operator", ({f"{path}.value": None}, {f"{path}.operator": None}))
            if each.get("key") is None:
                fix = removal(f"{path}.value", words="remove value")
            yield Broken(
                "S451 must not be combined with operator: Exists",
                "with Exists, every value matches",
                fix,
                f"{path}.value",
                each["value"],
            )
        elif not exists and each.get("key") is None:
            fix = Fix("write operator: Exists", ({f"{path}.operator": "Exists", f"{path}.value": None},))
            yield Broken(
                "S452 must have a key, or operator: Exists",
                "without operator, a toleration compares the value of a key",
                fix,
                path,
                each,
            )
        if each.get("key") is not None and not is_qualified_name(each["key"]):
            right = _meant_name(each["key"])
            rule = f"S464 must be at most {MAX_NAME_PART} {NAME_FORM}, or PREFIX/ and such a name"
            fix = nearest(right) if right else removal()
            yield Broken(rule, "Kubernetes has no taint of another name", fix, f"{path}.key", each["key"])
        yield from _label_value(f"{path}.value", each.get("value"))
        if each.get("seconds") is not None and each.get("effect") != "NoExecute":
            fix = Fix("write effect: NoExecute, or remove it", ({f"{path}.effect": "NoExecute"}, {HERE: None}))
            rule, reason = "S453 must come with effect: NoExecute", "only NoExecute taints evict running pods"
            yield Broken(rule, reason, fix, f"{path}.seconds", each["seconds"])


@_reads("kubernetes.priority_class")
def priority_class_is_a_name(name: str | None) -> Broken | None:
    """Refuse what the API server would refuse."""
    return _object_name("kubernetes.priority_class", name)


@_reads("kubernetes.queue")
def queue_is_a_label(name: str | None) -> Broken | None:
    """Kueue reads it from a label."""
    if name is None or (DNS_1123.fullmatch(name) and len(name) <= MAX_DNS_LABEL):
        return None
    rule = f"S456 must be at most {MAX_DNS_LABEL} lower-case letters, digits and hyphens (DNS-1123)"
    return Broken(rule, "Kueue accepts no other queue name", "write the name of a LocalQueue")


def _object_name(path: str, name: str | None) -> Broken | None:
    return None if name is None or is_object_name(name) else no_object_name(path, name)

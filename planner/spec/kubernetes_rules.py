"""The rules about `kubernetes`, apart from its volumes: `layout_rules.py` asks them with the others."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.facts.engines import OURS
from planner.facts.terms import EngineName
from planner.problems.fix import Fix, for_example, removal
from planner.spec.kubernetes import DEFAULT_IMAGE
from planner.spec.object_names import DNS_1123, MAX_DNS_LABEL, is_object_name, no_object_name
from planner.spec.rule import Broken, Rule, declare_at, declare_in
from planner.spec.volume_rules import VOLUMES

__all__ = ["RULES"]

# Source: github.com/distribution/reference regexp.go, with which a kubelet's runtime reads images.
_DOMAIN = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*(:[0-9]+)?"
_COMPONENT = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_SUFFIX = r"(:\w[\w.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
REFERENCE = re.compile(rf"({_DOMAIN}/)?{_COMPONENT}(/{_COMPONENT})*{_SUFFIX}", re.ASCII)

IMAGES = tuple(f"kubernetes.{place}image" for place in ("", "gateway.", "stage.", "controller."))

# Source: k8s.io/apimachinery metav1.Condition, the pattern of `type`.
CONDITION = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
)

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("kubernetes.namespace")
def namespace_is_a_dns_label(namespace: str) -> Broken | None:
    """Refuse what the API server would refuse."""
    if DNS_1123.fullmatch(namespace) and len(namespace) <= MAX_DNS_LABEL:
        return None
    rule = f"S403 must be at most {MAX_DNS_LABEL} lower-case letters, digits and hyphens (DNS-1123)"
    return Broken(rule, "Kubernetes accepts no other namespace name", "write the name of a namespace")


@declare_at(RULES, *IMAGES)
def images_are_references(_: str, image: str | None) -> Broken | None:
    """Refuse what a kubelet calls InvalidImageName; whether the image exists only the cluster knows."""
    if image is None or REFERENCE.fullmatch(image):
        return None
    rule = "S404 must be an image reference, as registry.example.com/chat/runtime:0.1.0"
    reason = "it has no spaces and no https://, its repository is in lower case, and a tag follows each colon"
    return Broken(rule, reason, "write it as docker pull takes it")


@_reads("kubernetes.image_pull_secrets")
def pull_secrets_are_names(secrets: Sequence[str]) -> Iterator[Broken]:
    """Refuse what the API server would refuse."""
    for index, name in enumerate(secrets):
        if not is_object_name(name):
            yield no_object_name(f"kubernetes.image_pull_secrets.{index}", name)


@_reads("gateway.keys")
def keys_are_in_an_object(secret: str | None) -> Broken | None:
    """Refuse what the API server would refuse."""
    return None if secret is None or is_object_name(secret) else no_object_name("gateway.keys", secret)


@_reads("kubernetes.tls.issuer")
def issuers_are_objects(issuer: str | None) -> Broken | None:
    """Refuse what the API server would refuse."""
    return None if issuer is None or is_object_name(issuer) else no_object_name("kubernetes.tls.issuer", issuer)


@_reads("kubernetes.controller.pace", "spec.sections")
def controllers_have_a_day(_: float, sections: frozenset[str]) -> Broken | None:
    """Every unit runs all day where there is no schedule."""
    if "schedule" in sections:
        return None
    rule, fix = "S469 must come with a schedule", removal("kubernetes.controller")
    return Broken(rule, "there is no day for the units to follow", fix, "kubernetes.controller")


@_reads("kubernetes.controller.pace", "kubernetes.unit_kind")
def controllers_scale_whole_units(_: float, unit_kind: str) -> Broken | None:
    """A StatefulSet's replicas are a unit's nodes, which the plan decides and whoever applies it writes."""
    if unit_kind == "leaderworkerset":
        return None
    fix = Fix(
        "remove kubernetes.unit_kind or kubernetes.controller",
        ({"kubernetes.unit_kind": None}, {"kubernetes.controller": None}),
    )
    rule = f"S470 must not be combined with kubernetes.unit_kind: {unit_kind}"
    reason = (
        "a LeaderWorkerSet is turned off and on by replicas 0 and 1, but a StatefulSet's replicas are the unit's nodes"
    )
    return Broken(rule, reason, fix, "kubernetes.controller")


@_reads("kubernetes.controller.pace", "kubernetes.controller.image?", "engine?", "engine.name?")
def controllers_of_other_engines_have_an_image(
    _: float, image: str | None, engine: EngineName | None, name: EngineName | None
) -> Broken | None:
    """Their images hold no Tidemill."""
    used = name or engine
    if image is not None or used in (None, OURS):
        return None
    rule = f"S471 must be given with engine {used}"
    fix = for_example("kubernetes.controller.image: registry.example.com/tidemill-runtime:0.1.0")
    return Broken(rule, f"the image of {used} does not hold tidemill controller", fix, "kubernetes.controller.image")


@_reads("kubernetes.stage.source", "kubernetes.stage.image?", "kubernetes.image", "engine?", "engine.name?")
def stages_of_other_engines_have_an_image(
    _: str, image: str | None, units: str, engine: EngineName | None, name: EngineName | None
) -> Broken | None:
    """Their images hold no Tidemill, by whose command checkpoints are copied."""
    used = name or engine
    if image is not None or units == DEFAULT_IMAGE or used in (None, OURS):
        return None
    rule = f"S486 must be given with engine {used} in kubernetes.image"
    fix = for_example("kubernetes.stage.image: registry.example.com/tidemill-runtime:0.1.0")
    return Broken(rule, f"an image of {used} does not hold what copies checkpoints", fix, "kubernetes.stage.image")


@_reads("kubernetes.gateway.volumes", "engine?", "engine.name?")
def only_our_gateway_reads_a_checkpoint(
    volumes: Sequence[Mapping[str, Any]] | None, engine: EngineName | None, name: EngineName | None
) -> Broken | None:
    """Another engine's router mounts nothing."""
    used = name or engine
    if volumes is None or used in (None, OURS):
        return None
    return Broken(f"S477 must not be combined with engine {used}", "its router mounts no volumes", removal())


@_reads("kubernetes.controller.kueue.cluster_queue", "kubernetes.controller.kueue.flavor")
def quotas_are_of_objects(queue: str, flavor: str) -> Iterator[Broken]:
    """Refuse what the API server would refuse."""
    for name, value in (("cluster_queue", queue), ("flavor", flavor)):
        if not is_object_name(value):
            yield no_object_name(f"kubernetes.controller.kueue.{name}", value)


@_reads("kubernetes.controller.heal.conditions")
def sound_nodes_are_not_left(conditions: Sequence[str]) -> Iterator[Broken]:
    """A condition of heal is true when something is wrong; one of Kubernetes' own is true when all is well."""
    for index, kind in enumerate(conditions):
        if kind.partition("=")[0] == "Ready":
            rule, fix = "S472 must not be Ready", removal()
            reason = "Ready is true on a healthy node, and Kubernetes itself ends the pods of a node that is not Ready"
            yield Broken(rule, reason, fix, f"kubernetes.controller.heal.conditions.{index}", kind)
        elif not CONDITION.fullmatch(kind.partition("=")[0]):
            rule = "S476 must be the type of a condition, in letters, digits, hyphens, underscores and dots"
            reason = "no condition of a node can have this name"
            fix = for_example("GPUMissing")
            yield Broken(rule, reason, fix, f"kubernetes.controller.heal.conditions.{index}", kind)


@_reads("kubernetes.controller.demand.used", "engine?", "engine.name?")
def demand_is_measured_here(_: float, engine: EngineName | None, name: EngineName | None) -> Broken | None:
    """Another engine's router counts otherwise."""
    used = name or engine
    if used in (None, OURS):
        return None
    rule, fix = f"S473 must not be combined with engine {used}", removal("kubernetes.controller.demand")
    return Broken(
        rule, "only Tidemill's own gateway measures the load of each phase", fix, "kubernetes.controller.demand"
    )


@_reads("kubernetes.controller.stragglers_last", "engine?", "engine.name?")
def stragglers_are_measured_here(last: bool, engine: EngineName | None, name: EngineName | None) -> Broken | None:
    """Another engine's ranks do not tell how long they take."""
    used = name or engine
    if used in (None, OURS) or not last:
        return None
    field = "kubernetes.controller.stragglers_last"
    rule, reason = (
        f"S474 must not be combined with engine {used}",
        "only Tidemill's own ranks report how long they take",
    )
    return Broken(rule, reason, removal(field), field)


@declare_at(RULES, *VOLUMES)
def claims_are_names(where: str, volumes: Sequence[Mapping[str, Any]] | None) -> Iterator[Broken]:
    """Refuse what the API server would refuse."""
    for index, volume in enumerate(volumes or ()):
        claim = volume.get("claim")
        if claim is not None and not is_object_name(claim):
            yield no_object_name(f"{where}.{index}.claim", claim)

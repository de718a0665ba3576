"""Render a plan as Kubernetes manifests: file name -> text, one object per file, the same bytes every time.

All decisions are in the plan and all names in `facts/names.py`. This file and `pods.py` turn them into template
variables, `templates/` turns these into YAML, and `overlay.py` merges the spec's additions. `folder.py` writes the
files.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from planner.facts import names
from planner.facts.engines import OURS
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.manifests.container import engine_container, epoch_arguments, runtime_container
from planner.manifests.controller import controller_variables
from planner.manifests.launch_parts import LaunchPart, config_mounts, gateway_parts, map_parts, unit_parts
from planner.manifests.network import controller_edges, default_edges, gateway_edges, unit_edges
from planner.manifests.overlay import apply_overlay
from planner.manifests.pods import (
    Variables,
    gateway_pod,
    has_compute_domain,
    router_pod,
    security_needs,
    unit_pod,
)
from planner.manifests.secrets import certificate, gateway_arguments, gateway_secrets, unit_arguments, unit_secrets
from planner.plan.plan import Plan
from planner.spec.kubernetes import KubernetesSpec

KUSTOMIZATION = "kustomization.yaml"
GROUPS_OF_A_UNIT = 1
PAST_ASCII = re.compile(r"[^ -~]")


@dataclass(frozen=True)
class Manifest:
    """One Kubernetes object to render: its template, the template's variables, and a name for its file."""

    template: str  # `leaderworkerset`, or `service-registry` if a kind has several uses
    owner: str  # the object's name; for a launch file's ConfigMap a name that does not change with its content
    variables: Variables

    @property
    def file_name(self) -> str:
        """The file's name, `leaderworkerset-demo-decode-0.yaml`. The name does not depend on the object's content."""
        kind = self.template.partition("-")[0]
        return f"{kind}-{self.owner}.yaml"


def render_files(plan: Plan) -> dict[str, str]:
    """Return file name -> text of every object, and of `kustomization.yaml`.

    Raises InfeasibleError if the plan's engine cannot run it, because its pods would only crash.
    """
    environment = _environment()
    files = {
        manifest.file_name: apply_overlay(_text(environment, manifest), plan.kubernetes.overlay)
        for manifest in _manifests(plan)
    }
    return {KUSTOMIZATION: environment.get_template(f"{KUSTOMIZATION}.j2").render(resources=list(files))} | files


def _text(environment: jinja2.Environment, manifest: Manifest) -> str:
    return environment.get_template(f"{manifest.template}.yaml.j2").render(manifest.variables)


@cache
def _environment() -> jinja2.Environment:
    """Return the Jinja environment, the same at each call. A variable without a value is an error there."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 (YAML, not HTML; every text goes through `quoted`)
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quote
    return environment


def _quote(value: Any) -> str:
    """Return `value` as JSON that YAML reads as the same value.

    JSON writes some characters as two surrogates, which YAML does not join, so these characters get YAML's escape.
    Lone surrogates cannot occur in a spec or a plan.
    """
    text = json.dumps(value, ensure_ascii=False)
    return PAST_ASCII.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


def _manifests(plan: Plan) -> Iterator[Manifest]:
    """Yield all manifests of a plan, in an order in which their objects can be created."""
    plan.require_runnable()
    maps = {phase: map_parts(plan, phase) for phase in dict.fromkeys(unit.phase for unit in plan.units)}
    yield from _shared_manifests(plan)
    for phase, parts in maps.items():
        yield from _map_manifests(plan, phase, parts)
    yield from _gateway_manifests(plan)
    for unit in plan.units:
        yield from _unit_manifests(plan, unit, maps[unit.phase])
    yield from _controller_manifests(plan)


def _shared_manifests(plan: Plan) -> Iterator[Manifest]:
    namespace, account = plan.kubernetes.namespace, names.runtime_account(plan.name)
    labels = names.labels(plan.name, "plan")
    needs = security_needs(plan)
    reason = {names.SECURITY_ANNOTATION: f"privileged: {', '.join(needs)}"} if needs else {}
    if plan.kubernetes.create_namespace:
        privileged = {names.SECURITY_LABEL: "privileged"} if needs else {}
        annotations = names.UNPRUNED | reason  # whoever prunes a namespace deletes all that is in it
        variables = {"name": namespace, "labels": labels | privileged, "annotations": annotations}
        yield Manifest("namespace", namespace, variables)
    shared = {"namespace": namespace, "labels": labels}
    runtime = {**shared, **({"annotations": reason} if reason else {}), **_pull_secrets(plan.kubernetes)}
    yield Manifest("serviceaccount", account, {"name": account, **runtime})
    yield from _policy_manifest(plan, plan.name, shared | {"selector": names.plan_selector(plan.name)}, default_edges())
    for phase in dict.fromkeys(unit.phase for unit in plan.units):
        yield from _budget_manifest(plan, phase, shared)
    if plan.kubernetes.monitors:
        ranks = max(unit.ranks_per_node for unit in plan.units)
        ports = ["metrics", *(f"metrics-{rank}" for rank in range(1, ranks))]
        if plan.engine != OURS:
            ports = [engine_container(plan.unit_document(plan.units[0])).metrics.port]
        monitor = {"selector": names.plan_selector(plan.name), "unit_label": names.UNIT_LABEL, "metrics_ports": ports}
        yield Manifest("podmonitor", account, {"name": account, **shared, **monitor})


def _budget_manifest(plan: Plan, phase: Phase, shared: Variables) -> Iterator[Manifest]:
    """Yield the PodDisruptionBudget of a phase; nothing by default for units without GPUs.

    A budget counts pods, but whole units are evicted (docs/design/pods.md).

    With `stay + 1` units left, one unit may still lose its first pod, after which no other unit may lose a pod. So the
    pods that must stay are those of `stay + 1` units, less one.
    """
    units = plan.units_of(phase)
    allowed = plan.kubernetes.disruptions
    if allowed is None:
        if plan.pods[phase].gpu_resource is None:
            return
        allowed = 1 if len(units) > 1 else 0
    pods_per_unit, stay = len(units[0].nodes), max(len(units) - allowed, 0)
    name = names.phase_budget(plan.name, phase)
    budget = {
        "selector": names.phase_selector(plan.name, phase),
        "min_available": min((stay + 1) * pods_per_unit - 1, len(units) * pods_per_unit),
    }
    yield Manifest("poddisruptionbudget", name, {"name": name, **shared, **budget})


def _map_manifests(plan: Plan, phase: Phase, parts: Sequence[LaunchPart]) -> Iterator[Manifest]:
    """Yield the ConfigMaps of the expert map that a phase's units share; none if every launch file has its own map."""
    sha256 = plan.unit_document(plan.units_of(phase)[0])["expert_map"]["sha256"] if parts else None
    shared = {
        "namespace": plan.kubernetes.namespace,
        "labels": names.labels(plan.name, "plan"),
        "annotations": {names.digest_annotation("expert-map"): sha256} | _keep_annotations(plan),
    }
    yield from _launch_configs(parts, shared)


def _gateway_manifests(plan: Plan) -> Iterator[Manifest]:
    document = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]
    service = {
        "namespace": plan.kubernetes.namespace,
        "labels": names.labels(plan.name, "gateway"),
        "selector": names.gateway_selector(plan.name),
        "ports": document["ports"],
    }
    gateway, registry = names.gateway_name(plan.name), names.registry_name(plan.name)
    parts = gateway_parts(plan)
    pod = gateway_pod(plan) if plan.engine == OURS else router_pod(plan, engine_container(document))
    workload = {
        **service,
        **pod,
        "annotations": _digest_annotations(document, "launch"),
        "launch_configs": [{"name": part.config} for part in parts],
        "launch_file": names.GATEWAY_LAUNCH_FILE,
        "more_args": gateway_arguments(plan),
        "secrets": gateway_secrets(plan),
    }
    yield Manifest("serviceaccount", gateway, {"name": gateway, **service, **_pull_secrets(plan.kubernetes)})
    yield from _launch_configs(parts, workload | {"annotations": workload["annotations"] | _keep_annotations(plan)})
    yield from _certificate_manifest(plan, {"name": gateway, **service})
    yield from _policy_manifest(plan, gateway, service, gateway_edges(plan))
    yield Manifest("service-gateway", gateway, {"name": gateway, **service})
    replicas = {"replicas": plan.gateway.replicas} if plan.gateway.replicas > 1 else {}
    if plan.engine == OURS:
        yield Manifest("service-registry", registry, {"name": registry, **service})
        yield Manifest("deployment", gateway, {"name": gateway, **replicas, **workload})
    else:
        yield Manifest("role", gateway, {**workload, "name": gateway})
        yield Manifest("rolebinding", gateway, {**workload, "name": gateway})
        yield Manifest("deployment-router", gateway, {"name": gateway, **replicas, **workload})
    if plan.gateway.replicas > 1:
        stay = {"min_available": plan.gateway.replicas - 1}
        yield Manifest("poddisruptionbudget", gateway, {"name": gateway, **service, **stay})
    if plan.kubernetes.monitors:
        yield Manifest("podmonitor", gateway, {"name": gateway, **service, "metrics_ports": ["metrics"]})


def _unit_manifests(plan: Plan, unit: Unit, shared: Sequence[LaunchPart]) -> Iterator[Manifest]:
    unpruned = _keep_annotations(plan)
    service: Variables = {
        "name": unit.name,
        "namespace": plan.kubernetes.namespace,
        "labels": names.labels(plan.name, unit.phase, unit.name, unit.phase),
        "selector": names.unit_selector(unit.name),
        **({"annotations": unpruned} if unpruned else {}),
    }
    document, launch_file = plan.unit_document(unit), names.launch_file(unit.name)
    if plan.engine == OURS:
        arguments = (f"--drain={plan.drain_s:g}", *unit_arguments(plan), *epoch_arguments(plan, unit))
        container = runtime_container(document, launch_file, names.registry_name(plan.name), arguments)
    else:
        container = engine_container(document)
    parts = unit_parts(plan, unit, shared)
    workload = {
        **service,
        **unit_pod(plan, unit, container),
        "annotations": _digest_annotations(document, "launch", "unit") | unpruned,
        "object_labels": service["labels"] | _queue_label(plan.kubernetes),
        "launch_configs": config_mounts(plan, unit, parts, shared),
        "secrets": unit_secrets(plan, unit.name),
        "account": names.runtime_account(plan.name),
        "nodes": unit.nodes,
        "num_nodes": len(unit.nodes),
        "spares": document["spares"],
        "plan_selector": names.plan_selector(plan.name),
        "unit_label": names.UNIT_LABEL,
        **_partition(plan.kubernetes),
    }
    yield from _launch_configs(parts, workload)
    yield from _certificate_manifest(plan, service)
    yield from _policy_manifest(plan, unit.name, service, unit_edges(plan, unit))
    yield Manifest("service-unit", unit.name, service)
    if has_compute_domain(plan, unit):
        yield Manifest("computedomain", unit.name, service | {"channel": names.compute_domain_channel(unit.name)})
    yield Manifest(plan.kubernetes.unit_kind, unit.name, workload)


def _controller_manifests(plan: Plan) -> Iterator[Manifest]:
    """Yield the objects of the controller, if the plan has one."""
    variables = controller_variables(plan)
    if variables is None:
        return
    name = variables["name"]
    yield Manifest("serviceaccount", name, variables | _pull_secrets(plan.kubernetes))
    yield from _policy_manifest(plan, name, variables, controller_edges(plan))
    yield Manifest("role-controller", name, variables)
    yield Manifest("rolebinding", name, variables)
    if "nodes_role" in variables:
        of_cluster = variables | {"name": variables["nodes_role"], "account": name}
        yield Manifest("clusterrole-controller", of_cluster["name"], of_cluster)
        yield Manifest("clusterrolebinding", of_cluster["name"], of_cluster)
    yield Manifest(
        "tidemilldeployment", plan.name, variables | {"annotations": names.MERGE_ANNOTATIONS}
    )  # orders, which others write into the object, stay
    yield Manifest("deployment-controller", name, variables)


def _policy_manifest(plan: Plan, name: str, variables: Variables, edges: Variables) -> Iterator[Manifest]:
    """Yield the NetworkPolicy that allows `edges` for the pods that `variables` select, if the spec wants policies."""
    if plan.kubernetes.network_policies:
        ways = {way: rules for way, rules in edges.items() if rules}  # the API server stores no empty ones
        yield Manifest("networkpolicy", name, variables | {"name": name} | ways)


def _launch_configs(parts: Sequence[LaunchPart], workload: Variables) -> Iterator[Manifest]:
    """Yield a ConfigMap for each part of a launch file. `workload` has the variables that all of them share."""
    for part in parts:
        variables = {**workload, "name": part.config, "launch_file": part.file, "text": part.text}
        yield Manifest("configmap", part.owner, variables)


def _certificate_manifest(plan: Plan, owner: Variables) -> Iterator[Manifest]:
    """Yield the Certificate of the gateway or of a unit, if the spec names an issuer. `owner` has its variables."""
    variables = certificate(plan, owner["name"])
    if variables is not None:
        yield Manifest("certificate", owner["name"], owner | variables)


def _pull_secrets(kubernetes: KubernetesSpec) -> Variables:
    """Return the variable with a ServiceAccount's image pull secrets; empty if the spec names none."""
    secrets = kubernetes.image_pull_secrets
    return {"image_pull_secrets": secrets} if secrets else {}


def _keep_annotations(plan: Plan) -> dict[str, str]:
    """Return the annotations of objects that a unit needs until it has drained, even after they have left the plan.

    These objects are the unit's own, and launch files of old pods. The controller deletes them after draining. Without
    a controller nobody would delete them, so there are no annotations, and the tool that applies the folder prunes the
    objects.
    """
    return {} if plan.kubernetes.controller is None else names.UNPRUNED


def _queue_label(kubernetes: KubernetesSpec) -> dict[str, str]:
    """Return the label that makes Kueue admit a unit through a queue; empty if the spec names no queue."""
    return {names.QUEUE_LABEL: kubernetes.queue} if kubernetes.queue else {}


def _partition(kubernetes: KubernetesSpec) -> Variables:
    """Return the variable that keeps a unit's old pods until the controller gives the unit its turn to change.

    It is empty without a controller.
    """
    return {"partition": GROUPS_OF_A_UNIT} if kubernetes.controller else {}


def _digest_annotations(document: dict[str, Any], *kinds: str) -> dict[str, str]:
    """Return the annotations with a launch document's digests of `kinds`, such as `unit` for `unit_digest`."""
    return {names.digest_annotation(kind): document[f"{kind}_digest"] for kind in kinds}

"""A plan to Kubernetes manifests: file name -> text, one object a file, the same bytes every time.

All decisions are in the plan and all names in `facts/names.py`. Here they get the words that templates use, and
`templates/` puts them into YAML. `folder.py` writes the files.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from planner.facts import names
from planner.facts.digest import digest_of_text
from planner.layout.unit import Unit
from planner.manifests.launch_parts import LaunchPart, launch_parts
from planner.plan.deployable import Deployable
from planner.spec.kubernetes import KubernetesSpec, PodResources

__all__ = ["KUSTOMIZATION", "MARK", "render_files"]

KUSTOMIZATION = "kustomization.yaml"
MARK = "# Written by tidemill render"  # its first line says so, with the digest of the others
MARK_ENDS = ", which replaces and removes the files listed here. Change the spec instead."

Variables = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """One object: its template, whose it is, and the values of the template's holes."""

    template: str  # `leaderworkerset`, or `service-registry` where a kind has several uses
    owner: str  # the object's name, but for a launch file's ConfigMap, whose name changes with its content
    variables: Variables

    @property
    def file_name(self) -> str:
        """Kind and owner: `leaderworkerset-demo-decode-0.yaml`. The same whatever changes in the object."""
        kind = self.template.partition("-")[0]
        return f"{kind}-{self.owner}.yaml"


def render_files(plan: Deployable) -> dict[str, str]:
    """File name -> text of every object and of `kustomization.yaml`.

    Raises InfeasibleError when the bundled runtime cannot run the plan: its pods would only crash.
    """
    environment = _environment()
    files = {
        manifest.file_name: environment.get_template(f"{manifest.template}.yaml.j2").render(manifest.variables)
        for manifest in _manifests(plan)
    }
    resources = [{"name": name, "digest": digest_of_text(text)} for name, text in files.items()]
    listing = environment.get_template(f"{KUSTOMIZATION}.j2").render(resources=resources)
    return {KUSTOMIZATION: f"{MARK} ({digest_of_text(listing)}){MARK_ENDS}\n{listing}"} | files


def _environment() -> jinja2.Environment:
    """Strict: a hole without a value is an error, not an empty string in a manifest."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 (YAML, not HTML; every text goes through `quoted`)
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = json.dumps  # a JSON string is a YAML string, whatever is in it
    return environment


def _manifests(plan: Deployable) -> Iterator[Manifest]:
    """In the order in which they can be created."""
    launch_files = plan.launch_files()
    yield from _shared(plan)
    yield from _gateway(plan, launch_files[names.GATEWAY_LAUNCH_FILE])
    for unit in plan.units:
        yield from _unit(plan, unit, launch_files[names.launch_file(unit.name)])


def _shared(plan: Deployable) -> Iterator[Manifest]:
    namespace, account = plan.kubernetes.namespace, names.runtime_account(plan.name)
    labels = names.labels(plan.name, "plan")
    if plan.kubernetes.create_namespace:
        yield Manifest("namespace", namespace, {"name": namespace, "labels": labels})
    runtime = {
        "namespace": namespace,
        "labels": labels,
        "annotations": {names.digest_annotation("plan"): plan.digest},  # here, since the namespace may be the user's
        **_pull_secrets(plan.kubernetes),
    }
    yield Manifest("serviceaccount", account, {"name": account, **runtime})


def _gateway(plan: Deployable, launch_text: str) -> Iterator[Manifest]:
    document = plan.launch_documents[names.GATEWAY_LAUNCH_FILE]
    service = {
        "namespace": plan.kubernetes.namespace,
        "labels": names.labels(plan.name, "gateway"),
        "selector": names.gateway_selector(plan.name),
        "ports": document["ports"],
    }
    gateway, registry = names.gateway_name(plan.name), names.registry_name(plan.name)
    parts = launch_parts(gateway, names.GATEWAY_LAUNCH_FILE, document["launch_digest"], launch_text)
    workload = {
        **service,
        **_pod(plan.kubernetes, plan.kubernetes.resources.gateway),
        "annotations": _digests(document, "launch"),
        "launch_configs": [part.config for part in parts],
        "launch_file": names.GATEWAY_LAUNCH_FILE,
    }
    yield Manifest("serviceaccount", gateway, {"name": gateway, **service, **_pull_secrets(plan.kubernetes)})
    yield from _launch_configs(parts, workload)
    yield Manifest("service-gateway", gateway, {"name": gateway, **service})
    yield Manifest("service-registry", registry, {"name": registry, **service})
    yield Manifest("deployment", gateway, {"name": gateway, **workload})


def _unit(plan: Deployable, unit: Unit, launch_text: str) -> Iterator[Manifest]:
    service = {
        "name": unit.name,
        "namespace": plan.kubernetes.namespace,
        "labels": names.labels(plan.name, unit.phase, unit.name, unit.phase),
        "selector": names.unit_selector(unit.name),
    }
    document = plan.unit_document(unit)
    parts = launch_parts(unit.name, names.launch_file(unit.name), document["launch_digest"], launch_text)
    workload = {
        **service,
        **_pod(plan.kubernetes, plan.kubernetes.resources.unit),
        "annotations": _digests(document, "launch", "unit"),
        "launch_configs": [part.config for part in parts],
        "launch_file": names.launch_file(unit.name),
        "account": names.runtime_account(plan.name),
        "nodes": unit.nodes,
        "num_nodes": len(unit.nodes),
        "spares": document["spares"],
        "plan_selector": names.plan_selector(plan.name),
        "unit_label": names.UNIT_LABEL,
        "registry": names.registry_name(plan.name),
        "ports": document["ports"],
    }
    yield from _launch_configs(parts, workload)
    yield Manifest("service-unit", unit.name, service)
    yield Manifest("leaderworkerset", unit.name, workload)


def _launch_configs(parts: Sequence[LaunchPart], workload: Variables) -> Iterator[Manifest]:
    """The ConfigMaps that `workload` mounts."""
    for part in parts:
        variables = {**workload, "name": part.config, "launch_file": part.file, "text": part.text}
        yield Manifest("configmap", part.owner, variables)


def _pull_secrets(kubernetes: KubernetesSpec) -> Variables:
    """What an account's pods log in with, if the spec says so."""
    secrets = kubernetes.image_pull_secrets
    return {"image_pull_secrets": secrets} if secrets else {}


def _pod(kubernetes: KubernetesSpec, resources: PodResources | None) -> Variables:
    """What a pod's image is, what it mounts and, if the spec says so, what it gets."""
    variables: Variables = {
        "image": kubernetes.image,
        "volumes": [
            {"name": f"volume-{index}", **volume.model_dump(exclude_none=True)}
            for index, volume in enumerate(kubernetes.volumes)
        ],
    }
    if resources is not None:
        variables["resources"] = {"cpu": _cpu(resources.cpus), "memory": _memory(resources.memory)}
    return variables


def _cpu(cpus: float) -> str:
    """`500m` or `2`: as the API server itself would write it, so that nothing looks changed."""
    millicpus = round(cpus * 1000)
    return f"{millicpus}m" if millicpus % 1000 else str(millicpus // 1000)


def _memory(num_bytes: int) -> str:
    """`1536Mi` or `2Gi`: likewise."""
    mib = round(num_bytes / 2**20)
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"


def _digests(document: dict[str, Any], *kinds: str) -> dict[str, str]:
    """Annotations of what is made from a launch document."""
    return {names.digest_annotation(kind): document[f"{kind}_digest"] for kind in kinds}

"""Plans for GPUs, and their manifests, with whatever a test writes under `kubernetes`."""

import json

import kubernetes_validate
import yaml

from planner.compiler import compile_plan
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import check_spec
from tests.planner.conftest import CONFIG

__all__ = ["container_of", "gpu_plan", "of_kind", "pod_of", "rendered", "unit_of", "validate"]

VERSION = "1.36"  # of the test cluster
SPEC = {
    "version": 1,
    "name": "river",
    "model": {"config": "config.json", "checkpoint": "/checkpoint"},
    "cluster": {"gpu": "h800", "nodes": 8, "gpus_per_node": 8},
    "prefill": {"units": 2, "ep_size": 16, "precision": "bf16", "max_request_tokens": 2048},
    "decode": {"ep_size": 32, "precision": "bf16", "max_request_tokens": 2048},
}


def gpu_plan(folder, kv_cache=None, **cluster):
    """Two prefill units of two nodes and a decode unit of four, of eight GPUs each."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = folder / "spec.json"
    kept = {} if kv_cache is None else {"kv_cache": kv_cache}
    path.write_text(json.dumps(SPEC | kept | {"cluster": SPEC["cluster"] | cluster}))
    return compile_plan(check_spec(path)).with_sections(refusals=())


def rendered(plan, **kubernetes):
    """The objects of `plan` with these fields of `kubernetes`, but for kustomize's own."""
    return objects_of(plan.with_sections(written=plan.written | {"kubernetes": kubernetes}))


def objects_of(plan):
    """The objects of `plan`, but for kustomize's own."""
    files = render_files(plan)
    return [yaml.load(text, Loader=yaml.CSafeLoader) for name, text in files.items() if name != KUSTOMIZATION]


def of_kind(objects, kind):
    """Those of a kind, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def unit_of(objects, name="river-decode-0"):
    """A unit's own object."""
    (found,) = (of_kind(objects, kind)[name] for kind in ("LeaderWorkerSet", "StatefulSet") if of_kind(objects, kind))
    return found


def pod_of(objects, name="river-decode-0"):
    """The pod template of a unit, or of the gateway."""
    found = of_kind(objects, "Deployment").get(name) or unit_of(objects, name)
    spec = found["spec"]
    return spec["leaderWorkerTemplate"]["workerTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]


DEFINED_ELSEWHERE = ("LeaderWorkerSet", "PodMonitor", "ComputeDomain", "Certificate", "TidemillDeployment")


def validate(objects, units):
    """Hold objects to Kubernetes' own schemas, strictly: those that it has, and Pods of the templates of `units`."""
    for document in objects:
        if document["kind"] not in DEFINED_ELSEWHERE:
            kubernetes_validate.validate(document, VERSION, strict=True)
    for name in units:
        template = pod_of(objects, name)
        metadata = {"name": "a"} | template["metadata"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)


def container_of(objects, name="river-decode-0"):
    """The one container of such a pod."""
    (container,) = pod_of(objects, name)["spec"]["containers"]
    return container

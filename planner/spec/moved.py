"""A table of the fields that earlier versions had: each is one error that says where it went."""

__all__ = ["MOVED"]

_SHARED_MEMORY = "spec.volumes: [{name: shared-memory, emptyDir: {sizeLimit: 64Gi}}]"
_HUGE_PAGES = (
    "spec.containers: [{name: runtime, resources: {limits: {hugepages-2Mi: 16Gi}}}], with a volume and its mount"
)
_CONTROLLER = "for the controller's pod in overlay.objects"

# Field -> what to write instead, below `kubernetes`.
MOVED = {
    "kubernetes.annotations": "overlay.unit_pod.metadata.annotations",
    "kubernetes.scheduler_name": "overlay.unit_pod.spec.schedulerName",
    "kubernetes.runtime_class": "overlay.unit_pod.spec.runtimeClassName",
    "kubernetes.shared_memory": f"overlay.unit_pod.{_SHARED_MEMORY}",
    "kubernetes.hugepages": f"overlay.unit_pod.{_HUGE_PAGES}",
    "kubernetes.gateway.tolerations": f"overlay.gateway_pod.spec.tolerations, and {_CONTROLLER}",
    "kubernetes.gateway.node_selector": f"overlay.gateway_pod.spec.nodeSelector, and {_CONTROLLER}",
    "kubernetes.patches": "overlay: pods in unit_pod and gateway_pod, other objects in objects",
}

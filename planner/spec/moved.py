"""A table of what is in the overlay now: fields of earlier versions, and Kubernetes' own names. Each is one error."""

__all__ = ["MOVED"]

_SHARED_MEMORY = "spec.volumes: [{name: shared-memory, emptyDir: {sizeLimit: 64Gi}}]"
_HUGE_PAGES = (
    "spec.containers: [{name: runtime, resources: {limits: {hugepages-2Mi: 16Gi}}}], with a volume and its mount"
)
_CONTROLLER = "for the controller's pod in overlay.objects"

_SCHEDULER, _RUNTIME_CLASS = "overlay.unit_pod.spec.schedulerName", "overlay.unit_pod.spec.runtimeClassName"

# Key -> what to write instead, below `kubernetes`.
MOVED = {
    "kubernetes.annotations": "overlay.unit_pod.metadata.annotations",
    "kubernetes.scheduler_name": _SCHEDULER,
    "kubernetes.schedulerName": _SCHEDULER,
    "kubernetes.runtime_class": _RUNTIME_CLASS,
    "kubernetes.runtimeClassName": _RUNTIME_CLASS,
    "kubernetes.shared_memory": f"overlay.unit_pod.{_SHARED_MEMORY}",
    "kubernetes.shm_size": f"overlay.unit_pod.{_SHARED_MEMORY}",
    "kubernetes.hugepages": f"overlay.unit_pod.{_HUGE_PAGES}",
    "kubernetes.gateway.tolerations": f"overlay.gateway_pod.spec.tolerations, and {_CONTROLLER}",
    "kubernetes.gateway.node_selector": f"overlay.gateway_pod.spec.nodeSelector, and {_CONTROLLER}",
    "kubernetes.patches": "overlay: pods in unit_pod and gateway_pod, other objects in objects",
}

"""Sections of the spec's `kubernetes` about pods: devices, networks, memory, scheduling and probes.

Rules check free mappings such as `env` (`rules/pods.py`), because no field declares their keys.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from planner.spec.section import ARGUMENT, Section

_TEXT = {"type": "string"}
_SECRET = {"type": "object", "properties": {"secret": _TEXT, "key": _TEXT}, "required": ["secret", "key"]}

Mapped = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": True})]
Texts = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": _TEXT})]
Variables = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": {"anyOf": [_TEXT, _SECRET]}})
]

OverlaidKind = Literal[
    "LeaderWorkerSet",
    "StatefulSet",
    "Deployment",
    "Service",
    "ServiceAccount",
    "Namespace",
    "PodDisruptionBudget",
    "PodMonitor",
    "ComputeDomain",
    "Certificate",
    "NetworkPolicy",
]


class RdmaSpec(Section):
    """NICs for RDMA between GPUs of different nodes, as a device plugin offers them to pods."""

    resource: str = Field(
        min_length=1, description="Name of the plugin's resource, as in the status of nodes.", examples=["rdma/hca"]
    )
    count: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of the resource that a pod requests: 1 if that gives access to all NICs of a node, else the"
        " number of NICs.",
        examples=[8],
    )


class NicsSpec(Section):
    """Names of a node's network interfaces, for libraries that would otherwise guess."""

    hca: list[str] = Field(
        default=[],
        description="RDMA devices, in the order of their nearest GPUs.",
        examples=[["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]],
    )
    socket: str | None = Field(
        default=None, min_length=1, description="Interface for the rendezvous of processes.", examples=["eth0"]
    )


class TolerationSpec(Section):
    """A taint of nodes that does not keep units away."""

    key: str | None = Field(
        default=None,
        min_length=1,
        description="The taint's key; without it, all keys match.",
        examples=["nvidia.com/gpu"],
    )
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="Whether the taint's value matters, or only its key.", examples=["Exists"]
    )
    value: str | None = Field(default=None, description="The taint's value, under Equal.", examples=["present"])
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; without it, all effects match.", examples=["NoSchedule"]
    )
    seconds: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Seconds for which a pod stays on a node with a NoExecute taint, by default for ever.",
        examples=[300],
    )


class VolumeSpec(Section):
    """A read-only volume of pods: a folder on every node, or a PersistentVolumeClaim."""

    mount_path: str = Field(description="Path of the volume in pods.", examples=["/models"])
    host_path: str | None = Field(
        default=None, description="A folder on every node, such as a local disk.", examples=["/mnt/models"]
    )
    claim: str | None = Field(
        default=None,
        min_length=1,
        description="A PersistentVolumeClaim that many nodes can mount, in place of a folder.",
        examples=["models"],
    )


class GatewayPodSpec(Section):
    """Image and volumes of the gateway's pod, which needs no GPU. The controller's pod has the same image."""

    image: str | None = Field(
        default=None,
        min_length=1,
        description="The gateway's image, by default kubernetes.image. Our own gateway needs no GPU kernels. With"
        " vllm it is the router's image, because vLLM's own lacks the router; the default is a guess at a published"
        " one.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    edge_image: str | None = Field(
        default=None,
        min_length=1,
        description="The image of nginx in front of vLLM's router, which closes the router's routes for"
        " administrators. It must run as any user, since pods are not root's.",
        examples=["registry.example.com/nginx-unprivileged:1.29.4"],
    )
    volumes: list[VolumeSpec] | None = Field(
        default=None,
        description="The gateway's volumes, in place of kubernetes.volumes. Of the checkpoint, the gateway reads only"
        " config.json and the tokenizer's files, which may be in a small claim or, with [], in its image.",
        examples=[[{"claim": "tokenizer", "mount_path": "/models"}]],
    )


class StageSpec(Section):
    """A copy of the checkpoint on each node's own disk, made before its ranks start."""

    source: str = Field(
        pattern=ARGUMENT,
        description="Path of the checkpoint to copy, inside one of the volumes, as pods see it.",
        examples=["/models/weights"],
    )
    host_path: str = Field(
        description="Folder on the node's own disk for the copy; pods see it at model.checkpoint.",
        examples=["/mnt/nvme/weights"],
    )


class TlsSpec(Section):
    """Certificates by which the gateway and the ranks of each unit prove to each other who they are."""

    issuer: str | None = Field(
        default=None,
        description="cert-manager's issuer of these certificates. Without it a Secret NAME-tls with tls.crt, tls.key"
        " and ca.crt must exist for the gateway's Deployment and for each unit, where NAME is the name of either.",
        examples=["tidemill-ca"],
    )
    issuer_kind: Literal["Issuer", "ClusterIssuer"] = Field(
        default="Issuer",
        description="Whether the issuer belongs to the namespace or to the whole cluster.",
        examples=["ClusterIssuer"],
    )


class ObjectPatch(Section):
    """A patch of rendered objects other than the pods of units and of the gateway."""

    kind: OverlaidKind = Field(description="Kind of the objects.", examples=["Service"])
    name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the object; by default all objects of the kind.",
        examples=["chat-gateway"],
    )
    patch: Mapped = Field(
        description="Patch to merge into these objects: for Kubernetes' own kinds a strategic merge, as by kubectl"
        " patch, for other kinds a JSON merge, which replaces lists.",
        examples=[{"spec": {"type": "LoadBalancer"}}],
    )


class OverlaySpec(Section):
    """Kubernetes settings without a field of their own, as patches that are merged last into the rendered objects."""

    unit_pod: Mapped = Field(
        default={},
        description="Patch for the pod template of each unit, merged as by kubectl patch: mappings are merged,"
        " containers and other lists of named items by name, and null removes.",
        examples=[
            {"metadata": {"annotations": {"example.com/rail": "aligned"}}, "spec": {"runtimeClassName": "nvidia"}}
        ],
    )
    gateway_pod: Mapped = Field(
        default={},
        description="Patch for the gateway's pod template.",
        examples=[{"spec": {"nodeSelector": {"pool": "cpu"}}}],
    )
    objects: list[ObjectPatch] = Field(
        default=[],
        description="Patches for other rendered objects.",
        examples=[[{"kind": "Service", "name": "chat-gateway", "patch": {"spec": {"type": "LoadBalancer"}}}]],
    )


def volume_of(path: str, volumes: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the volume that contains `path` in pods; None if there is none.

    If several volumes contain it, the one mounted deepest counts.
    """
    above = {
        index: volume["mount_path"] for index, volume in enumerate(volumes) if is_in(path, volume.get("mount_path"))
    }
    return max(above, key=lambda index: len(above[index]), default=None)


def is_in(path: str, folder: str | None) -> bool:
    """Return whether `path` is the folder `folder`, or inside it."""
    return folder is not None and (path == folder or path.startswith(f"{folder.rstrip('/')}/"))


def paths_overlap(path: str, other: str) -> bool:
    """Return whether two paths are equal, or one is inside the other."""
    return is_in(path, other) or is_in(other, path)

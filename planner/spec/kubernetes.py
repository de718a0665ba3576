"""The part of a spec that only the manifests need: namespace, image, mounts, what pods get.

Apart from `schema.py`, since no pass reads it and no layout depends on it.
"""

from typing import Annotated

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section

__all__ = ["KubernetesSpec", "PodResources", "ResourcesSpec", "VolumeSpec"]


class VolumeSpec(Section):
    """Something of the cluster that every pod can read, never write."""

    mount_path: str = Field(description="Where pods find it.", examples=["/models"])
    host_path: str | None = Field(
        default=None, description="A folder that is on every node, such as a local disk.", examples=["/mnt/models"]
    )
    claim: str | None = Field(
        default=None,
        min_length=1,
        description="Instead of a folder, a PersistentVolumeClaim that many nodes can mount.",
        examples=["models"],
    )


class PodResources(Section):
    """What each pod of a kind is sure to get."""

    cpus: float = Field(
        ge=0.001, le=4096, description="CPUs requested, without a limit since spare ones are free.", examples=[16]
    )
    memory: Annotated[int, *quantity("bytes", least="1MiB", most="1024TiB")] = Field(
        description="Memory requested, and the most that a pod may use.", examples=["512GiB"]
    )


class ResourcesSpec(Section):
    """CPUs and memory by kind of pod."""

    unit: PodResources | None = Field(
        default=None, description="For each pod of each unit.", examples=[{"cpus": 16, "memory": "512GiB"}]
    )
    gateway: PodResources | None = Field(
        default=None, description="For the gateway's pod.", examples=[{"cpus": 2, "memory": "4GiB"}]
    )


class KubernetesSpec(Section):
    """Names, image, mounts and sizes of the pods."""

    namespace: str = Field(default="tidemill", description="Namespace of all objects.", examples=["tidemill"])
    create_namespace: bool = Field(
        default=True,
        description="Create the namespace with the objects, and delete it with them; false: use the one that is there.",
        examples=[False],
    )
    image: str = Field(
        default="tidemill-runtime:0.1.0",
        min_length=1,
        description="The image that holds the runtime package, as the nodes can pull it.",
        examples=["registry.example.com/tidemill-runtime:0.1.0"],
    )
    image_pull_secrets: list[str] = Field(
        default=[],
        description="Secrets of the namespace with which nodes log in where the image is, where it is not public.",
        examples=[["registry-login"]],
    )
    volumes: list[VolumeSpec] = Field(
        default=[],
        description="What all pods mount read-only, such as the folder of the checkpoint.",
        examples=[[{"host_path": "/mnt/models", "mount_path": "/models"}]],
    )
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(),
        description="CPUs and memory of the pods.",
        examples=[{"unit": {"cpus": 16, "memory": "512GiB"}}],
    )
    ready_timeout: Annotated[float, *quantity("time", least="10s", most="24h")] = Field(
        default="30min",
        validate_default=True,
        description="Time after which a unit that is not ready is an error, where loading takes most of the time.",
        examples=["30min"],
    )

"""The spec's `kv_cache` section: where ranks keep KV of prompts for reuse, beside the cache of running requests.

Blocks of KV are kept in host memory on each rank's node and, behind it, on a disk that outlives all processes.
"""

from typing import Annotated, Literal

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section


class KvDiskSpec(Section):
    """A folder on the disk of each node, in which KV outlives processes."""

    path: str = Field(
        description="Folder of each node's own disk, which pods see under the same path. `tidemill up` uses a folder of"
        " its own instead.",
        examples=["/mnt/nvme/kv"],
    )
    size: Annotated[int, *quantity("bytes", least="1MiB", most="1024TiB")] = Field(
        description="The most space that KV takes on each node's disk, or in kubernetes.kv_cache_claim.",
        examples=["4TB"],
    )
    bandwidth: Annotated[float, *quantity("link")] | None = Field(
        default=None,
        description="Highest rate at which a node reads and writes KV on its disk, shared equally by its ranks; by"
        " default unlimited.",
        examples=["6GB/s"],
    )


class KvCacheSpec(Section):
    """The places where KV of prompts is kept beside the GPU's own memory, and who may reuse it."""

    memory: Annotated[int, *quantity("bytes", least="1MiB", most="1024TiB")] | None = Field(
        default=None,
        description="Host memory in which each rank that computes prompts keeps KV that no running request uses.",
        examples=["48GiB"],
    )
    disk: KvDiskSpec | None = Field(
        default=None,
        description="A disk behind the memory, so that KV outlives processes.",
        examples=[{"path": "/mnt/nvme/kv", "size": "4TB", "bandwidth": "6GB/s"}],
    )
    sharing: Literal["tenant", "all"] = Field(
        default="tenant",
        description="Who finds a prompt's KV again: callers with the same API key, or all. With `all`, the time to an"
        " answer tells callers what others have asked.",
        examples=["all"],
    )
    transport: Literal["tcp", "nixl"] = Field(
        default="tcp",
        description="How KV goes from prefill to decode: over TCP, or between ranks of one machine by NIXL, which"
        " writes it into the memory of the decode rank.",
        examples=["nixl"],
    )

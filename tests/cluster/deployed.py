"""A plan as `pulumi up` brings it to a cluster, and ways to look at it from the cluster's host."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes import client
from kubernetes.client import ApiClient

from planner.compiler import compile_plan
from planner.plan.plan import Plan
from planner.rules.check import check_spec
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from stacks.live.status import LiveUnit, read_live_plan
from tests.cluster.cert_manager import ISSUER
from tests.cluster.cluster import Cluster
from tests.cluster.pulumi import Pulumi

__all__ = ["RESOURCES", "Deployed", "listing", "new_stack", "write_spec"]

STACKS = Path(__file__).parents[2] / "stacks"
DEMO = STACKS / "specs" / "demo.yaml"
RESOURCES = {"unit": {"cpus": 0.1, "memory": "3GiB"}, "gateway": {"cpus": 0.1, "memory": "1GiB"}}
STATUS_TIMEOUT_S = 30
POLL_S = 0.3

# What comes and goes by itself, or is the record of something that happened.
NOT_LISTED = {"events", "leases", "endpointslices"}


@dataclass(frozen=True)
class Deployed:
    """A stack of our own Pulumi program, and the spec it deploys."""

    cluster: Cluster
    pulumi: Pulumi
    spec: Path
    namespace: str
    name: str = "demo"  # the plan's

    @classmethod
    def of_demo(cls, executable: Path, folder: Path, cluster: Cluster, namespace: str) -> "Deployed":
        """A new stack for the demo, not up yet."""
        spec = write_spec(folder, cluster, namespace)
        return cls(cluster, new_stack(executable, folder, cluster.kubeconfig, spec), spec, namespace)

    @property
    def plan(self) -> Plan:
        """Of the spec as it is now."""
        return compile_plan(check_spec(self.spec))

    def write_plan(self, name: str, *flags: str) -> Path:
        """The plan JSON of the spec as it is now, in a file beside it."""
        path = self.spec.with_name(name)
        done = self._tidemill("plan", str(self.spec), "-o", str(path), *flags)
        assert done.returncode == 0, done.stderr
        return path

    def deploy_plan(self, path: Path) -> None:
        """Let the next `up` carry out the plan in that file, instead of planning the spec."""
        for words in (["rm", "spec"], ["set", "plan", str(path)]):
            done = self.pulumi.run("config", *words)
            assert done.status == 0, done.output

    def change_spec(self, change: Callable[[dict], None]) -> None:
        """Edit the spec's file."""
        document = yaml.safe_load(self.spec.read_text())
        change(document)
        self.spec.write_text(yaml.safe_dump(document))

    def endpoint(self) -> str:
        """The gateway's Service, by its ClusterIP."""
        service = client.CoreV1Api(self.cluster.api).read_namespaced_service(f"{self.name}-gateway", self.namespace)
        return f"http://{service.spec.cluster_ip}:{service.spec.ports[0].port}"

    def pods(self, owner: str) -> list[client.V1Pod]:
        """Of a unit, in order of its group; of the gateway or the controller, `owner` is `NAME-gateway`."""
        component = owner.removeprefix(f"{self.name}-")
        others = component in ("gateway", "controller")
        label = f"app.kubernetes.io/component={component}" if others else f"tidemill.dev/unit={owner}"
        found = client.CoreV1Api(self.cluster.api).list_namespaced_pod(self.namespace, label_selector=label)
        return sorted(found.items, key=lambda pod: pod.metadata.name)

    def uids(self, owner: str) -> set[str]:
        """Of its pods that are not on their way out: other ones after a restart."""
        return {pod.metadata.uid for pod in self.pods(owner) if pod.metadata.deletion_timestamp is None}

    def run_status(
        self, *flags: str, context: str = "test", given: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """`tidemill status SPEC|PLAN.json --context ...`, of the spec unless a plan is given."""
        return self._tidemill("status", str(given or self.spec), "--context", context, *flags)

    def _tidemill(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(Path(sys.executable).with_name("tidemill")), *words]
        environment = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def states_until(self, unit: str, state: str, timeout_s: float) -> list[LiveUnit]:
        """What `status` finds of the unit from now until it is in that state: each different answer once.

        In this process: a new one for each look would take the processor that the unit needs to come back.
        """
        seen: list[LiveUnit] = []
        plan, api = self.plan, Api(Connection(self.cluster.api))
        deadline = time.monotonic() + timeout_s
        while not seen or seen[-1].state != state:
            assert time.monotonic() < deadline, f"{unit} is not {state} within {timeout_s} s: {seen}"
            (answer,) = (each for each in read_live_plan(plan, api).units if each.name == unit)
            if not seen or answer != seen[-1]:
                seen.append(answer)
            time.sleep(POLL_S)
        return seen


def new_stack(executable: Path, folder: Path, kubeconfig: Path, spec: Path) -> Pulumi:
    """A new stack of our own program for that spec. The program is copied: Pulumi writes its settings beside it."""
    program = folder / "program"
    program.mkdir(parents=True)
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copy(STACKS / name, program)
    (program / "provider").symlink_to(STACKS / "provider")
    pulumi = Pulumi(executable, program, folder / "home", kubeconfig)
    pulumi.init()
    done = pulumi.run("config", "set", "spec", str(spec))
    assert done.status == 0, done.output
    return pulumi


def write_spec(folder: Path, cluster: Cluster, namespace: str) -> Path:
    """The demo's spec, but for what this cluster is: its namespace, image, mounts, and how long it may take.

    Both phases overlap, as the published system's do, which leaves the texts as they are. They stay in FP32, because
    BF16's loops would be compiled in each pod anew.
    """
    document = yaml.safe_load(DEMO.read_text().replace("../../", f"{DEMO.parents[2]}/"))
    document["prefill"]["overlap"], document["decode"]["overlap"] = "dual_batch", "five_stage"
    document["kubernetes"] = {
        "namespace": namespace,
        "image": cluster.image,
        "volumes": [dict(volume) for volume in cluster.volumes],
        "resources": RESOURCES,
        "ready_timeout": "10min",
        "tls": {"issuer": ISSUER, "issuer_kind": "ClusterIssuer"},
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def listing(api: ApiClient) -> set[tuple[str, str, str]]:
    """Kind, namespace and name of every object of every kind that can be listed."""
    return {
        (resource["name"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        for root, resource in _kinds(api)
        if "list" in resource["verbs"] and resource["name"] not in NOT_LISTED
        for item in _get(api, f"{root}/{resource['name']}")["items"] or []
    }


def _kinds(api: ApiClient) -> Iterator[tuple[str, dict]]:
    groups = [each["preferredVersion"]["groupVersion"] for each in _get(api, "/apis")["groups"]]
    for root in ("/api/v1", *(f"/apis/{each}" for each in groups)):
        yield from ((root, each) for each in _get(api, root)["resources"] if "/" not in each["name"])


def _get(api: ApiClient, path: str) -> dict:
    answer = api.call_api("GET", f"{api.configuration.host}{path}", header_params=_headers(api), _request_timeout=30)
    assert answer.status == 200, f"{path}: {answer.status}"
    return json.loads(answer.read())


def _headers(api: ApiClient) -> dict[str, str]:
    return {"Accept": "application/json", **api.default_headers}

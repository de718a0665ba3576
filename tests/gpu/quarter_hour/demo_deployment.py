"""The demo's units and their gateway as processes: what `tidemill up` would start, of a plan for GPUs.

Each rank is alone on its node, so all are local rank 0 and take GPU 0. `--one-host` of `demo_units.py` says what NCCL
makes of it. Whatever hangs is ended, after it has said where.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from planner.compiler import plan_from
from planner.plan.plan import Plan
from stacks.local.certificates import Certificates, now
from stacks.local.deployment import require_free
from stacks.local.layout import Layout, NodeProcess, lay_out_locally
from stacks.local.processes import ProcessGroup
from stacks.local.reports import ask_gateway
from tests.gpu.quarter_hour.demo_answers import MODEL, Wrong
from tests.stacks.deployments import CHECKPOINT, HOSTS, samples, total

POLL_S = 0.1
END_S = 5  # beyond the drain
LOG_LINES = 40
METRICS_PORT = 9400
SHARED_GPU = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MAX_CTAS": "4",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "PYTHONFAULTHANDLER": "1",  # for `abort_ranks`
}


def planned(folder: Path, device: str) -> Plan:
    """Plan two units whose ranks are each alone on a node."""
    phase = {
        "ep_size": 2,
        "redundant_experts": 4,
        "precision": "bf16",
        "max_requests": 8,
        "max_request_tokens": 2048,
        "max_batch_tokens": 2048,
        "max_kv_tokens": 32_768,  # four ranks share the memory
    }
    spec = {
        "version": 1,
        "name": "demo",
        "model": {"config": str(CHECKPOINT / "config.json"), "checkpoint": "bundled:demo", "name": MODEL},
        "cluster": {"gpu": "h100" if device == "cuda" else "cpu", "nodes": 4, "gpus_per_node": 1},
        "prefill": phase,
        "decode": phase,
        "expert_load": {"file": str(CHECKPOINT / "expert_load.json")},
    }
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec))  # JSON is YAML
    return plan_from(path, None)


@contextmanager
def served(plan: Plan, folder: Path, one_host: bool) -> Iterator["Deployment"]:
    """Start the plan as `tidemill up` would, and end it."""
    launch_files = folder / "launch"
    launch_files.mkdir()
    for name, text in plan.launch_files().items():
        (launch_files / name).write_text(text)
    layout = lay_out_locally(plan, launch_files, folder / "certificates", folder / "kv", next(HOSTS))
    require_free(layout.listeners)
    Certificates(layout.identities, now())
    deployment = Deployment(plan, layout, folder, one_host)
    try:
        deployment.start()
        yield deployment
    except Wrong:
        deployment.require_alive()  # or that is what is wrong
        deployment.abort_ranks()
        raise
    finally:
        deployment.show_logs()
        deployment.end()


class Deployment:
    """The processes, and where they answer."""

    def __init__(self, plan: Plan, layout: Layout, folder: Path, one_host: bool) -> None:
        """Start nothing yet; logs come into `folder`."""
        self._plan, self._layout, self._folder = plan, layout, folder
        members = layout.nodes if one_host else [_as_a_host_of_its_own(node) for node in layout.nodes]
        self._gateway = ProcessGroup("gateway", [layout.gateways[0].process], folder)
        units = [[node for node in members if node.unit == unit.name] for unit in plan.units]
        self._units = [ProcessGroup(unit.name, nodes, folder) for unit, nodes in zip(plan.units, units, strict=True)]
        self.ended_s, self.left = 0.0, 0

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where the gateway answers."""
        return self._layout.gateways[0].host, self._layout.gateways[0].http_port

    def start(self) -> None:
        """Start the gateway and the units."""
        for group in (self._gateway, *self._units):
            group.start()

    def wait_until_ready(self, within_s: float) -> float:
        """Return the seconds until every rank was ready. Raise Wrong."""
        began, shown = time.monotonic(), ""
        while (passed := time.monotonic() - began) < within_s:
            self.require_alive()
            report = ask_gateway(self._layout.gateways[0], self._gateway.pids)
            units = {} if report is None else report.units
            states = {name: [rank.state for rank in ranks.values()] for name, ranks in sorted(units.items())}
            if str(states) != shown:
                shown = str(states)
                print(f"{passed:5.1f} s {states}", flush=True)
            if all(states.get(unit.name) == ["ready"] * unit.ranks for unit in self._plan.units):
                return round(passed, 1)
            time.sleep(POLL_S)
        raise Wrong(f"not ready within {within_s:g} s: {shown}")

    def abort_ranks(self) -> None:
        """Let every rank that the gateway knows say in its log where it hangs."""
        report = ask_gateway(self._layout.gateways[0], self._gateway.pids)
        for rank in [] if report is None else [rank for ranks in report.units.values() for rank in ranks.values()]:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGABRT)
        time.sleep(1)

    def require_alive(self) -> None:
        """Raise Wrong when a process has ended."""
        for group in (self._gateway, *self._units):
            if (ended := group.find_first_failure()) is not None:
                raise Wrong(ended[1])

    def said(self) -> list[str]:
        """Return what nodes and ranks said in their logs, such as on which GPU they compute."""
        lines = [line for log in self._logs() for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if "tidemill: " in line]  # behind the rank

    @contextmanager
    def counted(self) -> Iterator[dict[str, float]]:
        """Fill the dictionary that is yielded with what the prefill ranks count meanwhile."""
        before, counted = self._counts(), dict[str, float]()
        yield counted
        counted.update({name: value - before[name] for name, value in self._counts().items()})

    def _counts(self) -> dict[str, float]:
        hosts = [_flag(node, "--address") for node in self._layout.nodes if node.unit == self._plan.units[0].name]
        found = [sample for host in hosts for sample in samples(host, METRICS_PORT)]
        return {
            "bytes": total(found, "tidemill_kv_transfer_bytes_total", part="payload"),
            "seconds": total(found, "tidemill_kv_transfer_seconds_sum"),
            "after_prompt_s": total(found, "tidemill_kv_transfer_after_prompt_seconds_sum"),
            "transfers": total(found, "tidemill_kv_transfer_seconds_count"),
            "prompt_tokens": total(found, "tidemill_computed_prompt_tokens_total"),
            "dispatched_bytes": total(found, "tidemill_dispatch_bytes_total"),
        }

    def show_logs(self) -> None:
        """Print the end of every log, without the gateway's line for each answer."""
        for log in self._logs():
            lines = log.read_text(errors="replace").splitlines()
            said = [line for line in lines if '"level":"info"' not in line]
            print("\n".join([f"-- {log.name}", *said[-LOG_LINES:]]), flush=True)

    def end(self) -> None:
        """Let the units drain, end what is left, and count what even that has left."""
        began = time.monotonic()
        groups = (*self._units, self._gateway)
        for group in groups:
            group.terminate()
        while any(group.is_running() for group in groups) and time.monotonic() - began < self._plan.drain_s + END_S:
            time.sleep(POLL_S)
        self.left = sum(group.is_running() for group in groups)
        for group in groups:
            group.kill()
        self.ended_s = round(time.monotonic() - began, 1)

    def _logs(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))


def _as_a_host_of_its_own(node: NodeProcess) -> NodeProcess:
    return replace(node, command=("env", f"NCCL_HOSTID={node.name}", *node.command))


def _flag(node: NodeProcess, name: str) -> str:
    return node.command[node.command.index(name) + 1]

"""etcd, kube-apiserver and Kubernetes' own controllers: a control plane with nothing behind it.

An API server alone decides schemas, admission, defaults and field ownership; nothing acts on what is stored. The
controllers are started on top of it, for tests that need accounts, garbage collection, or a Deployment's pods. On a
loopback address neither needs root.
"""

import ipaddress
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import urllib3
import yaml
from kubernetes import client, config

from tests.cluster.build import obtain
from tests.cluster.certificates import Authority
from tests.cluster.processes import Daemons
from tests.cluster.products import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER

__all__ = ["SERVICE_RANGE", "Address", "ControlPlane", "running_api_server", "start_controllers", "start_scheduler"]

READY_TIMEOUT_S = 120  # about 5 s alone on the machine
SERVICE_RANGE = "10.96.0.0/16"
ETCD_DATA = "etcd-data"
NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Address:
    """Where a control plane listens."""

    host: str
    api_port: int = 6443
    etcd_port: int = 2379
    peer_port: int = 2380

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.host}:{self.api_port}"

    @classmethod
    def on_loopback(cls) -> "Address":
        """One that nothing else uses, made of our process id and a number: its free ports stay free."""
        process_id = os.getpid()
        host = f"127.{64 + next(NUMBERS) % 64}.{process_id >> 8 & 255}.{process_id & 255}"
        return cls(host, *_free_ports(host, 3))


@dataclass(frozen=True)
class ControlPlane:
    """A running one. `kubeconfig` is the administrator's, for other programs; `api` uses it."""

    kubeconfig: Path
    api: client.ApiClient
    address: Address
    authority: Authority
    daemons: Daemons

    @property
    def folder(self) -> Path:
        """Of its logs, certificates and kubeconfigs."""
        return self.daemons.folder


@contextmanager
def running_api_server(daemons: Daemons, address: Address) -> Iterator[ControlPlane]:
    """Start etcd and kube-apiserver, and stop all `daemons` at the end; what was stored is deleted.

    Raises NotReady, with what the daemons said last.
    """
    authority = _issue_certificates(daemons.folder, address.host)
    kubeconfig = authority.issue_kubeconfig("admin", address.server, user="admin", group="system:masters")
    with _without_data(daemons.folder), daemons.running():
        _start_etcd(daemons, address)
        _start_api_server(daemons, address)
        with config.new_client_from_config(str(kubeconfig)) as api:
            daemons.wait_until(lambda: _is_ready(api), "the API server is ready", READY_TIMEOUT_S)
            yield ControlPlane(kubeconfig, api, address, authority, daemons)


def start_controllers(control_plane: ControlPlane, *, node_grace_s: int) -> None:
    """Start kube-controller-manager: accounts, namespaces, garbage collection, workloads, nodes.

    A node that is silent for `node_grace_s` is not ready.
    """
    folder = control_plane.folder
    user = "system:kube-controller-manager"
    kubeconfig = control_plane.authority.issue_kubeconfig("controllers", control_plane.address.server, user)
    control_plane.daemons.start(
        "controllers",
        *(obtain(CONTROLLER_MANAGER), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"),
        *("--use-service-account-credentials", f"--service-account-private-key-file={folder / 'service-accounts.key'}"),
        f"--root-ca-file={folder / 'ca.crt'}",  # without it every pod waits for the ConfigMap kube-root-ca.crt
        *("--node-monitor-period=1s", f"--node-monitor-grace-period={node_grace_s}s"),
        *("--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-statefulset-syncs=20"),
    )
    core = client.CoreV1Api(control_plane.api)
    control_plane.daemons.wait_until(
        lambda: _has_account_and_authority(core), "new namespaces get an account and the authority", READY_TIMEOUT_S
    )


def start_scheduler(control_plane: ControlPlane) -> None:
    """Start kube-scheduler, which needs no waiting for."""
    user = "system:kube-scheduler"
    kubeconfig = control_plane.authority.issue_kubeconfig("scheduler", control_plane.address.server, user)
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 500, "burst": 1000},
    }
    path = control_plane.folder / "scheduler.yaml"
    path.write_text(yaml.safe_dump(settings))
    control_plane.daemons.start("scheduler", obtain(SCHEDULER), f"--config={path}", "--secure-port=0")


@contextmanager
def _without_data(folder: Path) -> Iterator[None]:
    """Delete what etcd stored, over 100 MB, when it has stopped."""
    try:
        yield
    finally:
        shutil.rmtree(folder / ETCD_DATA, ignore_errors=True)


def _free_ports(host: str, number: int) -> list[int]:
    """Ports free on `host` now; held together, so that they differ."""
    sockets = [socket.create_server((host, 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _issue_certificates(folder: Path, host: str) -> Authority:
    authority = Authority(folder)
    first_of_services = ipaddress.ip_network(SERVICE_RANGE)[1]
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    authority.issue_server("apiserver", f"IP:{host}", f"IP:{first_of_services}", *(f"DNS:{name}" for name in names))
    authority.issue_client("apiserver-to-kubelet", user="kube-apiserver", group="system:masters")
    authority.new_key("service-accounts")
    return authority


def _start_etcd(daemons: Daemons, address: Address) -> None:
    clients = f"http://{address.host}:{address.etcd_port}"
    peers = f"http://{address.host}:{address.peer_port}"
    daemons.start(
        "etcd",
        *(obtain(ETCD), f"--data-dir={daemons.folder / ETCD_DATA}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
        *(
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ),
    )


def _start_api_server(daemons: Daemons, address: Address) -> None:
    folder, host = daemons.folder, address.host
    daemons.start(
        "apiserver",
        *(obtain(API_SERVER), f"--etcd-servers=http://{host}:{address.etcd_port}", "--profiling=false"),
        *(f"--bind-address={host}", f"--secure-port={address.api_port}", f"--advertise-address={host}"),
        *(f"--tls-cert-file={folder / 'apiserver.crt'}", f"--tls-private-key-file={folder / 'apiserver.key'}"),
        *(f"--client-ca-file={folder / 'ca.crt'}", "--authorization-mode=Node,RBAC", "--allow-privileged"),
        f"--kubelet-client-certificate={folder / 'apiserver-to-kubelet.crt'}",
        f"--kubelet-client-key={folder / 'apiserver-to-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={folder / 'service-accounts.key'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        *("--service-account-issuer=https://kubernetes.default.svc", f"--service-cluster-ip-range={SERVICE_RANGE}"),
        *("--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5"),
        *_without_an_endpoint_on_loopback(host),
    )


def _without_an_endpoint_on_loopback(host: str) -> list[str]:
    """The Service `kubernetes` may not have a loopback endpoint, and without pods nothing needs it."""
    return ["--endpoint-reconciler-type=none"] if ipaddress.ip_address(host).is_loopback else []


def _is_ready(api: client.ApiClient) -> bool:
    try:
        answer = api.call_api("GET", f"{api.configuration.host}/readyz", _request_timeout=5)
    except (urllib3.exceptions.HTTPError, client.ApiException):
        return False
    return answer.status == HTTPStatus.OK


def _has_account_and_authority(core: client.CoreV1Api) -> bool:
    """What pods of the namespace `default` wait for."""
    accounts = core.list_namespaced_service_account("default").items
    maps = core.list_namespaced_config_map("default").items
    return {"default", "kube-root-ca.crt"} <= {each.metadata.name for each in (*accounts, *maps)}

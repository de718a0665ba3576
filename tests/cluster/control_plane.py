"""A control plane with nothing behind it: etcd and kube-apiserver on a loopback address, without root.

It answers everything that an API server decides alone: schemas, admission, defaults, field ownership. Nothing acts on
what is stored: no controller makes pods of a Deployment or a ServiceAccount for a new namespace.
"""

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

from tests.cluster.build import API_SERVER, ETCD, obtain
from tests.cluster.certificates import Authority
from tests.cluster.processes import Daemons

__all__ = ["ControlPlane", "start_control_plane"]

READY_TIMEOUT_S = 120  # about 5 s alone on the machine
ETCD_DATA = "etcd-data"
NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class ControlPlane:
    """A running one. `kubeconfig` is the administrator's, for other programs; `api` uses it."""

    kubeconfig: Path
    api: client.ApiClient
    daemons: Daemons


@contextmanager
def start_control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start one with its files in `folder`; afterwards only logs, certificates and the kubeconfig remain.

    Raises NotReady, with what the daemons said last.
    """
    host = _own_address()
    etcd_port, peer_port, api_port = _free_ports(host, 3)
    _issue_certificates(folder, host)
    kubeconfig = _write_kubeconfig(folder, f"https://{host}:{api_port}")
    with _without_data(folder), Daemons(folder).running() as daemons:
        _start_etcd(daemons, f"http://{host}:{etcd_port}", f"http://{host}:{peer_port}")
        _start_api_server(daemons, host, api_port, f"http://{host}:{etcd_port}")
        with config.new_client_from_config(str(kubeconfig)) as api:
            daemons.wait_until(lambda: _is_ready(api), "the API server is ready", READY_TIMEOUT_S)
            yield ControlPlane(kubeconfig, api, daemons)


@contextmanager
def _without_data(folder: Path) -> Iterator[None]:
    """Delete what etcd stored, over 100 MB, when it has stopped."""
    try:
        yield
    finally:
        shutil.rmtree(folder / ETCD_DATA, ignore_errors=True)


def _own_address() -> str:
    """A loopback address that nothing else uses, made of our process id and a number: its free ports stay free."""
    process_id = os.getpid()
    return f"127.{64 + next(NUMBERS) % 64}.{process_id >> 8 & 255}.{process_id & 255}"


def _free_ports(host: str, number: int) -> list[int]:
    """Ports free on `host` now; held together, so that they differ."""
    sockets = [socket.create_server((host, 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _issue_certificates(folder: Path, host: str) -> None:
    authority = Authority(folder)
    authority.issue_server("apiserver", f"IP:{host}", "DNS:localhost", "DNS:kubernetes.default.svc")
    authority.issue_client("admin", user="admin", group="system:masters")
    authority.new_key("service-accounts")


def _write_kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "admin.kubeconfig"
    cluster = {"server": server, "certificate-authority": str(folder / "ca.crt")}
    user = {"client-certificate": str(folder / "admin.crt"), "client-key": str(folder / "admin.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _start_etcd(daemons: Daemons, clients: str, peers: str) -> None:
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


def _start_api_server(daemons: Daemons, host: str, port: int, etcd: str) -> None:
    folder = daemons.folder
    daemons.start(
        "apiserver",
        *(obtain(API_SERVER), f"--etcd-servers={etcd}", f"--bind-address={host}", f"--secure-port={port}"),
        *(f"--tls-cert-file={folder / 'apiserver.crt'}", f"--tls-private-key-file={folder / 'apiserver.key'}"),
        *(f"--client-ca-file={folder / 'ca.crt'}", "--authorization-mode=Node,RBAC"),
        f"--service-account-key-file={folder / 'service-accounts.key'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        *("--service-cluster-ip-range=10.96.0.0/16", "--profiling=false"),
        # The Service `kubernetes` may not have a loopback endpoint, and nothing here needs one.
        *(f"--advertise-address={host}", "--endpoint-reconciler-type=none"),
    )


def _is_ready(api: client.ApiClient) -> bool:
    try:
        answer = api.call_api("GET", f"{api.configuration.host}/readyz", _request_timeout=5)
    except (urllib3.exceptions.HTTPError, client.ApiException):
        return False
    return answer.status == HTTPStatus.OK

"""LeaderWorkerSet: its CustomResourceDefinitions, from the pinned module, and its controller with its webhooks."""

import base64
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.build import obtain
from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import serve_definitions
from tests.cluster.objects import Objects
from tests.cluster.products import LWS_CONTROLLER, LWS_CRDS, LWS_WEBHOOKS

__all__ = ["serve_leaderworkersets", "start_leaderworkersets"]

SERVED_TIMEOUT_S = 60
WEBHOOK_PORT = 9443
ABOUT_PODS = ("mpod.kb.io", "vpod.kb.io")
OF_LEADERWORKERSETS = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}


def serve_leaderworkersets(control_plane: ControlPlane) -> None:
    """Apply the CRDs and wait until discovery serves what they define."""
    serve_definitions(control_plane, sorted(obtain(LWS_CRDS).glob("*.yaml")))


def start_leaderworkersets(control_plane: ControlPlane, objects: Objects) -> None:
    """Start the controller and let the API server ask its webhooks. The CRDs are served: it does not wait for them."""
    folder, address = control_plane.folder, control_plane.address
    settings = folder / "leaderworkersets.yaml"
    settings.write_text(yaml.safe_dump(_settings(address.host, _webhook_certificates(control_plane))))
    kubeconfig = control_plane.authority.issue_kubeconfig(
        "leaderworkersets", address.server, user="leaderworkersets", group="system:masters"
    )
    control_plane.daemons.start(
        "leaderworkersets",
        *("env", f"KUBECONFIG={kubeconfig}", "LWS_NAMESPACE=default", obtain(LWS_CONTROLLER), "--config", settings),
    )
    control_plane.daemons.wait_until(
        lambda: _listens(address.host), "LeaderWorkerSet's webhooks listen", SERVED_TIMEOUT_S
    )
    for each in _webhooks(address.host, (folder / "ca.crt").read_bytes()):
        objects.apply(each)


def _webhook_certificates(control_plane: ControlPlane) -> Path:
    """A folder with `tls.crt` and `tls.key`."""
    name = "leaderworkersets-webhook"
    control_plane.authority.issue_server(name, f"IP:{control_plane.address.host}")
    folder = control_plane.folder / name
    folder.mkdir()
    for kind in ("crt", "key"):
        shutil.copyfile(control_plane.folder / f"{name}.{kind}", folder / f"tls.{kind}")
    return folder


def _settings(host: str, certificates: Path) -> dict[str, Any]:
    """On the control plane's own address, so that several may run on a machine."""
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": host, "port": WEBHOOK_PORT, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"{host}:8081"},
        "metrics": {"bindAddress": f"{host}:8444"},
        "clientConnection": {"qps": 500, "burst": 1000},
    }


def _listens(host: str) -> bool:
    try:
        return bool(ssl.get_server_certificate((host, WEBHOOK_PORT), timeout=2))
    except OSError:
        return False


def _webhooks(host: str, authority: bytes) -> Iterator[dict[str, Any]]:
    """The module's, reached at an address instead of a Service; those about pods only for its own pods."""
    for document in filter(None, yaml.safe_load_all(obtain(LWS_WEBHOOKS).read_text())):
        document["metadata"]["name"] = f"lws-{document['metadata']['name']}"
        for each in document["webhooks"]:
            path = each["clientConfig"]["service"]["path"]
            url = f"https://{host}:{WEBHOOK_PORT}{path}"
            each["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
            if each["name"] in ABOUT_PODS:
                each["objectSelector"] = OF_LEADERWORKERSETS
        yield document

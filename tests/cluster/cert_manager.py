"""cert-manager: its CustomResourceDefinitions, and its controllers with an authority of the cluster's own.

Without its webhook, which refuses what is wrong, and without ACME: nothing here asks an authority of the internet.
"""

import base64
from typing import Any

from tests.cluster.build import obtain
from tests.cluster.certificates import Authority
from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import serve_definitions
from tests.cluster.objects import Objects
from tests.cluster.products import CERT_MANAGER, CERT_MANAGER_CRDS

__all__ = ["ISSUER", "serve_certificates", "start_cert_manager"]

ISSUER = "test-issuer"
NAMESPACE = "cert-manager"  # where a ClusterIssuer's Secret is
KINDS = ("certificates", "certificaterequests", "issuers", "clusterissuers")


def serve_certificates(control_plane: ControlPlane) -> None:
    """Apply the CRDs and wait until discovery serves what they define."""
    folder = obtain(CERT_MANAGER_CRDS)
    serve_definitions(control_plane, [folder / f"cert-manager.io_{kind}.yaml" for kind in KINDS])


def start_cert_manager(control_plane: ControlPlane) -> None:
    """Start the controllers, and make the ClusterIssuer `ISSUER` with an authority of its own. The CRDs are served."""
    kubeconfig = control_plane.authority.issue_kubeconfig(
        "cert-manager", control_plane.address.server, user="cert-manager", group="system:masters"
    )
    control_plane.daemons.start("cert-manager", "env", f"KUBECONFIG={kubeconfig}", obtain(CERT_MANAGER))
    objects = Objects(control_plane.api, str(control_plane.folder / "discovery-with-certificates.json"))
    for document in _issuer(control_plane):
        objects.apply(document)


def _issuer(control_plane: ControlPlane) -> list[dict[str, Any]]:
    folder = control_plane.folder / "issuer"
    folder.mkdir()
    authority = Authority(folder)
    data = {f"tls.{kind}": (authority.folder / f"ca.{kind}").read_bytes() for kind in ("crt", "key")}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": ISSUER, "namespace": NAMESPACE},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        },
        {
            "apiVersion": "cert-manager.io/v1",
            "kind": "ClusterIssuer",
            "metadata": {"name": ISSUER},
            "spec": {"ca": {"secretName": ISSUER}},
        },
    ]

"""Cluster DNS: CoreDNS on the control plane's address, not in a pod. Names outside the cluster do not exist."""

from tests.cluster.build import obtain
from tests.cluster.control_plane import ControlPlane
from tests.cluster.network import is_healthy
from tests.cluster.objects import Objects
from tests.cluster.products import COREDNS

__all__ = ["dns_answers", "start_dns"]

USER = "system:coredns"
READY_PORT = 8181
MAY_READ = [
    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
]
# Two blocks: in one, `template` would answer before `kubernetes`; without it, other names would be retried, not absent.
COREFILE = """\
cluster.local in-addr.arpa ip6.arpa {{
    bind {address}
    errors
    ready {address}:{ready_port}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig} test
        ttl 0
    }}
    cache 1
    loadbalance
}}
. {{
    bind {address}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def start_dns(control_plane: ControlPlane, objects: Objects) -> None:
    """Start it; it answers when `dns_answers`."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": USER}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
    objects.apply(role | {"rules": MAY_READ})
    objects.apply(role | {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]})
    address = control_plane.address
    kubeconfig = control_plane.authority.issue_kubeconfig("coredns", address.server, USER)
    corefile = control_plane.folder / "Corefile"
    corefile.write_text(COREFILE.format(address=address.host, kubeconfig=kubeconfig, ready_port=READY_PORT))
    control_plane.daemons.start("coredns", obtain(COREDNS), "-conf", corefile)


def dns_answers(control_plane: ControlPlane) -> bool:
    """Whether it has seen all services."""
    return is_healthy(control_plane.address.host, READY_PORT, "/ready")

"""What is built for the test clusters, from which pinned module, and with which flags.

Each folder of `toolchain/` is a Go module of its own, because the tools' versions of their libraries clash. A product
whose parts must lie in one folder (Pulumi looks for its language host beside itself) names them in `beside`.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ACTIONLINT",
    "API_SERVER",
    "CERT_MANAGER",
    "CERT_MANAGER_CRDS",
    "CNI_PLUGINS",
    "CONTAINERD",
    "CONTROLLER_MANAGER",
    "COREDNS",
    "ETCD",
    "FLUX_KUSTOMIZE",
    "FLUX_KUSTOMIZE_CRDS",
    "FLUX_SOURCE",
    "FLUX_SOURCE_CRDS",
    "GITEA",
    "KUBELET",
    "KUBE_PROXY",
    "KWOK",
    "LWS_CONTROLLER",
    "LWS_CRDS",
    "LWS_WEBHOOKS",
    "MONITOR_CRDS",
    "PULUMI",
    "PULUMI_YAML",
    "RUNC",
    "SCHEDULER",
    "Product",
]

TOOLCHAIN = Path(__file__).parent / "toolchain"

# `readonly`: never touch our go.mod. The local toolchain: never fetch another Go.
GO_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}


@dataclass(frozen=True)
class Product:
    """A file or folder in the cache, and what it is made from."""

    name: str
    folder: Path  # with go.mod and go.sum
    package: str  # to build; or, with `inside`, the module to copy it from
    inside: str | None = None  # path in the module's source
    tags: str = ""
    definitions: str = ""  # for the linker
    cgo: bool = False  # whether C takes part
    beside: tuple["Product", ...] = ()  # put into the same folder

    @property
    def go_command(self) -> list[str]:
        """All that decides the outcome besides sources, environment and Go itself."""
        if self.inside is not None:
            return ["mod", "download", "-json", self.package]
        tags = [f"-tags={self.tags}"] if self.tags else []
        return ["build", "-buildvcs=false", "-trimpath", f"-ldflags=-s -w{self.definitions}", *tags, self.package]

    @property
    def go_environment(self) -> dict[str, str]:
        """For the command above."""
        return GO_ENVIRONMENT | {"CGO_ENABLED": str(int(self.cgo))}

    @property
    def sources(self) -> list[Path]:
        """The files of ours that decide the outcome."""
        return [self.folder / "go.mod", self.folder / "go.sum", *sorted(self.folder.glob("*.go"))]


def _kubernetes(name: str) -> Product:
    return Product(name, TOOLCHAIN / "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str, *beside: Product) -> Product:
    package = f"github.com/containerd/containerd/v2/cmd/{name}"
    without_snapshotters = "no_btrfs,no_devmapper,no_zfs"
    return Product(name, TOOLCHAIN / "containerd", package, tags=without_snapshotters, beside=beside)


def _flux(name: str) -> Product:
    return Product(name, TOOLCHAIN / "flux", f"github.com/fluxcd/{name}")


def _flux_crds(name: str) -> Product:
    return Product("crds", TOOLCHAIN / "flux", f"github.com/fluxcd/{name}", inside="config/crd/bases")


def _gitea_files(folder: str) -> Product:
    return Product(folder, TOOLCHAIN / "gitea", "code.gitea.io/gitea", inside=folder)


def _cni(package: str, *beside: Product) -> Product:
    name = package.rpartition("/")[2]
    return Product(name, TOOLCHAIN / "cni", f"github.com/containernetworking/plugins/plugins/{package}", beside=beside)


def _pulumi_python(path: str) -> Product:
    return Product(Path(path).name, TOOLCHAIN / "pulumi", "github.com/pulumi/pulumi/sdk/v3", inside=f"python/{path}")


API_SERVER = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
SCHEDULER = _kubernetes("kube-scheduler")
KUBELET = _kubernetes("kubelet")
KUBE_PROXY = _kubernetes("kube-proxy")
ETCD = Product("etcd", TOOLCHAIN / "etcd-kwok", "go.etcd.io/etcd/server/v3")
KWOK = Product("kwok", TOOLCHAIN / "etcd-kwok", "sigs.k8s.io/kwok/cmd/kwok")
COREDNS = Product("coredns", TOOLCHAIN / "coredns", ".")

LWS_CONTROLLER = Product("lws", TOOLCHAIN / "lws", "sigs.k8s.io/lws/cmd")
LWS_CRDS = Product("crds", TOOLCHAIN / "lws", "sigs.k8s.io/lws", inside="config/crd/bases")
LWS_WEBHOOKS = Product("manifests.yaml", TOOLCHAIN / "lws", "sigs.k8s.io/lws", inside="config/webhook/manifests.yaml")

MONITOR_CRDS = Product(
    "podmonitors.yaml",
    TOOLCHAIN / "prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
    inside="example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
)

CERT_MANAGER = Product("cert-manager", TOOLCHAIN / "cert-manager", ".")
CERT_MANAGER_CRDS = Product(
    "crds", TOOLCHAIN / "cert-manager", "github.com/cert-manager/cert-manager", inside="deploy/crds"
)

CONTAINERD = _containerd("containerd", _containerd("containerd-shim-runc-v2"), _containerd("ctr"))
CNI_PLUGINS = _cni("main/bridge", _cni("main/loopback"), _cni("ipam/host-local"), _cni("meta/portmap"))
# Pods with a seccomp profile, as all of ours, are refused by a runc without it; libseccomp is a C library.
RUNC = Product("runc", TOOLCHAIN / "runc", "github.com/opencontainers/runc", tags="seccomp", cgo=True)

PULUMI = Product(
    "pulumi",
    TOOLCHAIN / "pulumi",
    "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
    definitions=" -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=3.250.0",
    beside=(
        Product(
            "pulumi-language-python",
            TOOLCHAIN / "pulumi-language-python",
            "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python",
        ),
        _pulumi_python("cmd/pulumi-language-python-exec"),
        _pulumi_python("dist/pulumi-resource-pulumi-python"),
    ),
)

# Pulumi looks for it on PATH, too.
PULUMI_YAML = Product(
    "pulumi-language-yaml",
    TOOLCHAIN / "pulumi-language-yaml",
    "github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml",
)

ACTIONLINT = Product("actionlint", TOOLCHAIN / "actionlint", "github.com/rhysd/actionlint/cmd/actionlint")

FLUX_KUSTOMIZE = _flux("kustomize-controller")
FLUX_KUSTOMIZE_CRDS = _flux_crds("kustomize-controller")
FLUX_SOURCE = _flux("source-controller")
FLUX_SOURCE_CRDS = _flux_crds("source-controller")

# Its pages and its Git ignore files come from folders beside it; its database is a C library.
GITEA = Product(
    "gitea",
    TOOLCHAIN / "gitea",
    "code.gitea.io/gitea",
    tags="sqlite,sqlite_unlock_notify",
    cgo=True,
    beside=(_gitea_files("templates"), _gitea_files("options"), _gitea_files("public")),
)

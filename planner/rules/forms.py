"""The formats of text fields: what Kubernetes and other readers accept as a name, an image or a folder.

The table FORMS has the form of each field, and one rule checks them all. Forms that one regular expression describes
are in the schema (`pattern=`). Keys that the user chooses, such as names of variables, are checked in `pods.py`.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.facts.calendar import is_day
from planner.problems.finding import Finding
from planner.problems.fix import for_example
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_DNS_LABEL = 63
MAX_DNS_NAME = 253
# The part of a qualified name after its prefix, and the value of a label.
# Source: github.com/kubernetes/kubernetes c2c7d507 staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go
NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PART = "at most 63 letters and digits, with hyphens, dots and _ between them"
# Source: k8s.io/apimachinery metav1.Condition, the pattern of `type`; heal.conditions may append a status.
CONDITION = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
    r"(=[A-Za-z]+)?"
)
# Source: github.com/distribution/reference regexp.go, with which a kubelet's runtime reads images.
_DOMAIN = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*(:[0-9]+)?"
_COMPONENT = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_SUFFIX = r"(:\w[\w.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
IMAGE_REFERENCE = re.compile(rf"({_DOMAIN}/)?{_COMPONENT}(/{_COMPONENT})*{_SUFFIX}", re.ASCII)
EFFECTS = "NoSchedule|NoExecute|PreferNoSchedule"


@dataclass(frozen=True)
class Form:
    """The format of a text field: words for it, a reason and an example, and a test."""

    must_be: str
    reason: str
    example: str
    matches: Callable[[str], Any]

    def findings(self, path: str, text: str, value: str | None = None) -> Iterator[Finding]:
        """Yield a finding if `text` does not have this form. `text` is the value at `path`, or the path's last key."""
        if not self.matches(text):
            yield Finding(path, value, f"S209 must be {self.must_be}", self.reason, for_example(self.example))


def texts_match_their_forms(c: ValidValues, path: str) -> Iterator[Finding]:
    """Reject names, images, paths and other texts that Kubernetes or another reader would refuse or misread."""
    value: str | None = c[path]
    if value is not None:
        yield from FORMS[re.sub(r"\.[0-9]+", ".*", path)].findings(path, value, value)


def is_folder(path: str) -> bool:
    """Return whether `path` is absolute and normalised, is not `/`, and has no colon.

    Two leading slashes are checked separately, because `normpath` keeps them. Container runtimes split mounts at
    colons.
    """
    is_plain = path.startswith("/") and not path.startswith("//") and ":" not in path
    return is_plain and path == posixpath.normpath(path) != "/"


def _is_label(text: str) -> bool:
    return len(text) <= MAX_DNS_LABEL and DNS_1123.fullmatch(text) is not None


def _is_object_name(name: str) -> bool:
    return len(name) <= MAX_DNS_NAME and all(DNS_1123.fullmatch(label) for label in name.split("."))


def _is_label_name(key: str) -> bool:
    """Return whether `key` is NAME or PREFIX/NAME, where the prefix is a DNS name."""
    prefix, slash, name = key.rpartition("/")
    return (not slash or _is_object_name(prefix)) and NAME_PART.fullmatch(name) is not None


def _is_network_attachment(text: str) -> bool:
    network, at, interface = text.partition("@")
    return all(map(_is_label, [*network.split("/", 1), *([interface] if at else [])]))


def _is_checkpoint(text: str) -> bool:
    return text.startswith("/") or re.fullmatch(r"bundled:[a-z0-9_-]+", text) is not None


NAMED_AFTER_IT = "Kubernetes objects are named after it"
DNS_LABEL = "at most 63 lower-case letters, digits and hyphens (DNS-1123)"
NO_OTHER = "Kubernetes accepts no other {}"

PLAN = Form(
    "lower-case letters, digits and hyphens, from a letter to a letter or digit (DNS-1035)",
    *(NAMED_AFTER_IT, "chat", DNS_1035.fullmatch),
)
NAMESPACE = Form(DNS_LABEL, NO_OTHER.format("namespace name"), "chat", _is_label)
QUEUE = Form(DNS_LABEL, "Kueue accepts no other queue name", "inference", _is_label)
OBJECT = Form(
    "at most 253 lower-case letters, digits, hyphens and dots (DNS-1123)",
    *(NO_OTHER.format("object name"), "chat-keys", _is_object_name),
)
NODE = Form(
    "lower-case letters, digits, hyphens and dots (DNS-1123)",
    "no Kubernetes node can have this name, and each node has an entry of its own",
    *("gpu-a01, as kubectl get nodes shows it", _is_object_name),
)
IMAGE = Form(
    "an image reference, as docker pull takes it",
    "it has no spaces and no https://, its repository is in lower case, and a tag follows each colon",
    *("registry.example.com/chat/runtime:0.1.0", IMAGE_REFERENCE.fullmatch),
)
RESOURCE = Form(
    "DOMAIN/NAME, as nodes list the resources of device plugins",
    *(NO_OTHER.format("resource name"), "nvidia.com/gpu or rdma/hca"),
    lambda text: "/" in text and _is_label_name(text),
)
LABEL_NAME = Form(f"{PART}, or PREFIX/ and such a name", NO_OTHER.format("name"), "example.com/pool", _is_label_name)
LABEL_VALUE = Form(PART, NO_OTHER.format("value"), "inference", lambda text: text == "" or NAME_PART.fullmatch(text))
NETWORK = Form(
    "NAME, NAMESPACE/NAME or either with @INTERFACE, of lower-case letters, digits and hyphens",
    *("Multus accepts no other network name, and each network is an item of its own", "rdma-0", _is_network_attachment),
)
DEVICE = Form(
    "the name of one device, without commas and spaces",
    *("each device is an item of its own", "mlx5_0", re.compile(r"[^\s,]+").fullmatch),
)
TAINT = Form(
    "KEY=VALUE:EFFECT or KEY:EFFECT",
    f"the effect, {EFFECTS.replace('|', ' or ')}, decides whether the plan may use the node",
    "dedicated=inference:NoSchedule",
    re.compile(rf"[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:({EFFECTS})").fullmatch,
)
FAULT = Form(
    "the type of a condition, in letters, digits, hyphens, underscores and dots",
    *("no condition of a node can have this name", "GPUMissing", CONDITION.fullmatch),
)
DAY = Form("a weekday, or a date", "the calendar has no other days", "saturday, or 2026-12-24", is_day)
CHECKPOINT = Form(
    "bundled:NAME or an absolute path",
    "the runtime looks for it where it runs, not next to the spec",
    *("/models/mine, its folder in the pod", _is_checkpoint),
)
FOLDER = Form(
    "an absolute path below /, without //, .., : or a closing /",
    "pods and nodes have no current folder, and a folder must be written in one way only",
    *("/mnt/models", is_folder),
)
VARIABLE = Form(
    "letters, digits and _, and not start with a digit",
    "other names are not valid for environment variables",
    *("NCCL_DEBUG", re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch),
)
OPTION = Form(
    "lower-case letters and digits in words joined by hyphens, without leading ones",
    "engines' options have no other names",
    *("reasoning-parser", re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch),
)
SECRET_KEY = Form(
    "at most 253 letters, digits, hyphens, dots and _, and not begin with two dots",
    *("a Secret has no other keys", "token"),
    re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]{1,253}").fullmatch,  # k8s.io/apimachinery IsConfigMapKey
)

VOLUMES = ("kubernetes.volumes", "kubernetes.gateway.volumes")
FORMS: Mapping[str, Form] = {
    "name": PLAN,
    "model.checkpoint": CHECKPOINT,
    "cluster.nodes.*.name": NODE,
    "cluster.nodes.*.taints.*": TAINT,
    "schedule.other_days.*.days.*": DAY,
    "traffic.other_days.*.days.*": DAY,
    "kv_cache.disk.path": FOLDER,
    "gateway.keys": OBJECT,
    "kubernetes.namespace": NAMESPACE,
    **{f"kubernetes.{key}": IMAGE for key in ("image", "tidemill_image", "gateway.image", "gateway.edge_image")},
    "kubernetes.image_pull_secrets.*": OBJECT,
    **{f"{volumes}.*.{key}": FOLDER for volumes in VOLUMES for key in ("mount_path", "host_path")},
    **{f"{volumes}.*.claim": OBJECT for volumes in VOLUMES},
    "kubernetes.gpu_resource": RESOURCE,
    "kubernetes.rdma.resource": RESOURCE,
    "kubernetes.networks.*": NETWORK,
    "kubernetes.nics.hca.*": DEVICE,
    "kubernetes.tolerations.*.key": LABEL_NAME,
    "kubernetes.tolerations.*.value": LABEL_VALUE,
    "kubernetes.priority_class": OBJECT,
    "kubernetes.queue": QUEUE,
    "kubernetes.stage.source": FOLDER,
    "kubernetes.stage.host_path": FOLDER,
    "kubernetes.kernel_cache": FOLDER,
    "kubernetes.kv_cache_claim": OBJECT,
    "kubernetes.tls.issuer": OBJECT,
    "kubernetes.controller.heal.conditions.*": FAULT,
}

RULES = (Rule("S209", "fields", texts_match_their_forms, tuple(FORMS)),)

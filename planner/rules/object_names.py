"""Names of Kubernetes' objects, for the rules about them: what the API server takes."""

import re

from planner.problems.finding import Finding

__all__ = [
    "DNS_1035",
    "DNS_1123",
    "MAX_DNS_LABEL",
    "MAX_NAME_PART",
    "is_label_value",
    "is_object_name",
    "is_qualified_name",
    "no_object_name",
    "qualified_part",
]

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_DNS_LABEL = 63
MAX_DNS_NAME = 253
# Of a qualified name behind its prefix, and of a label's value.
# Source: github.com/kubernetes/kubernetes c2c7d507 staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go
NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
MAX_NAME_PART = 63


def is_object_name(name: str) -> bool:
    """Whether the API server takes `name` for an object: labels of lower-case letters, with dots between them."""
    return len(name) <= MAX_DNS_NAME and all(DNS_1123.fullmatch(label) for label in name.split("."))


def is_qualified_name(key: str) -> bool:
    """Whether the API server takes `key` for a label or an annotation: NAME, or PREFIX/NAME where a DNS name is before
    the slash.
    """
    prefix, slash, name = key.rpartition("/")
    return (not slash or is_object_name(prefix)) and name != "" and is_label_value(name)


def is_label_value(text: str) -> bool:
    """Whether the API server takes `text` for the value of a label: nothing, or as the name of one."""
    return text == "" or (len(text) <= MAX_NAME_PART and NAME_PART.fullmatch(text) is not None)


def no_object_name(path: str, name: str) -> Finding:
    """Return the finding about `name`, at `path`, which the API server would not take."""
    rule = f"S415 must be at most {MAX_DNS_NAME} lower-case letters, digits, hyphens and dots (DNS-1123)"
    return Finding(path, name, rule, "Kubernetes accepts no other object name", "write the name of an object")


def qualified_part(text: str) -> str:
    """Return `text` as the value of a label, for a fix; nothing where no letter or digit is in it."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:MAX_NAME_PART].rstrip("-._")

"""Names of Kubernetes' objects, for the rules about them: what the API server takes, and what comes near it."""

import re

from planner.problems.fix import nearest
from planner.spec.rule import Broken

__all__ = ["DNS_1035", "DNS_1123", "MAX_DNS_LABEL", "is_object_name", "no_object_name", "slug"]

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_DNS_LABEL = 63
MAX_DNS_NAME = 253


def is_object_name(name: str) -> bool:
    """Whether the API server takes `name` for an object: labels of lower-case letters, with dots between them."""
    return len(name) <= MAX_DNS_NAME and all(DNS_1123.fullmatch(label) for label in name.split("."))


def no_object_name(path: str, name: str) -> Broken:
    """Return the verdict on `name`, at `path`, which the API server would not take."""
    rule = f"S415 must be at most {MAX_DNS_NAME} lower-case letters, digits, hyphens and dots (DNS-1123)"
    return Broken(rule, "Kubernetes has no object of another name", nearest(slug(name)), path, name)


def slug(text: str) -> str:
    """Return `text` as a DNS label, for a fix."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")[:MAX_DNS_LABEL].rstrip("-")
    return label or "tidemill"

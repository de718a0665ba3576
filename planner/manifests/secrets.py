"""The Secrets that pods mount beside their launch files: API keys and certificates.

Manifests only name these Secrets. The cluster's operator or cert-manager creates them, and running pods see renewals.
"""

from collections.abc import Sequence
from typing import Any

from planner.facts import names
from planner.plan.plan import Plan
from planner.spec.pods import TlsSpec

FOLDER = names.MOUNTED[0]
# Lifetime of a certificate, as in `tidemill up` (stacks/local/certificates.py). cert-manager renews after two thirds.
LASTS = "24h"
FOR_THE_POD_ALONE = 0o440

Secrets = list[dict[str, Any]]


def gateway_arguments(plan: Plan) -> list[str]:
    """Return the gateway's arguments for its Secrets and, if there are several gateways, for their number."""
    keys = [f"--keys={FOLDER}/{names.KEYS_FILE}"] if plan.gateway.keys else []
    beside = [f"--gateways={plan.gateway.replicas}"] if plan.gateway.replicas > 1 else []
    return keys + beside + _tls_arguments(plan.kubernetes.tls)


def unit_arguments(plan: Plan) -> list[str]:
    """Return the arguments by which a unit's nodes find their Secrets."""
    return _tls_arguments(plan.kubernetes.tls)


def gateway_secrets(plan: Plan) -> Secrets:
    """Return the Secrets that the gateway's pod mounts: `name`, and `files` with `key` and `path` each."""
    keys = [_mounted(plan.gateway.keys, [names.KEYS_FILE])] if plan.gateway.keys else []
    return keys + _tls_secrets(plan, names.gateway_name(plan.name))


def unit_secrets(plan: Plan, unit: str) -> Secrets:
    """Return the Secrets that a unit's pods mount: `name`, and `files` with `key` and `path` each."""
    return _tls_secrets(plan, unit)


def certificate(plan: Plan, owner: str) -> dict[str, Any] | None:
    """Return the template variables of the Certificate of the gateway or a unit; None if the spec names no issuer."""
    tls, namespace = plan.kubernetes.tls, plan.kubernetes.namespace
    if tls is None or tls.issuer is None:
        return None
    is_gateway = owner == names.gateway_name(plan.name)
    units = names.unit_identities(namespace, plan.name)
    return {
        "secret": names.certificate_secret(owner),
        "identity": names.gateway_identity(namespace, plan.name) if is_gateway else units + owner,
        "usage": "server auth" if is_gateway else "client auth",
        "duration": LASTS,
        "issuer": tls.issuer,
        "issuer_kind": tls.issuer_kind,
    }


def _tls_arguments(tls: TlsSpec | None) -> list[str]:
    return [] if tls is None else [f"--tls={FOLDER}/{names.TLS_FOLDER}"]


def _tls_secrets(plan: Plan, owner: str) -> Secrets:
    if plan.kubernetes.tls is None:
        return []
    return [_mounted(names.certificate_secret(owner), names.TLS_FILES, f"{names.TLS_FOLDER}/", FOR_THE_POD_ALONE)]


def _mounted(secret: str, files: Sequence[str], below: str = "", mode: int | None = None) -> dict[str, Any]:
    bits = {} if mode is None else {"mode": mode}
    return {"name": secret, "files": [{"key": file, "path": below + file} | bits for file in files]}

"""The errors that a user of the provider can cause, each as one sentence that says what to do.

    ProviderError
    ├── KubeconfigError    there is no usable kubeconfig
    ├── UnreachableError   the API server gives no answer
    ├── RefusedError       the API server says no
    ├── NotServedError     the API server does not know the kind
    ├── ForeignError       the object exists and is not ours
    ├── OtherPlanError     the object exists and belongs to another plan
    ├── SharedError        the namespace has objects of other plans in it
    ├── NotReadyError      the object exists, is ours, and is not ready
    ├── PartlyStoredError  of several objects some are stored, and something is wrong with one
    ├── SeveralErrors      more than one of several objects would be refused
    └── NotGoneError       the object was to be deleted and still exists

Bugs of ours are not here: they are `assert`s, which the servicer answers with one line.
"""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from stacks.kube.manifest import Manifest, Reference

__all__ = [
    "ForeignError",
    "KubeconfigError",
    "NotGoneError",
    "NotReadyError",
    "NotServedError",
    "OtherPlanError",
    "PartlyStoredError",
    "ProviderError",
    "RefusedError",
    "SeveralErrors",
    "SharedError",
    "UnreachableError",
]

# Kind -> how to make a cluster serve it.
INSTALL = {
    "LeaderWorkerSet": "install LeaderWorkerSet 0.9 or newer: kubectl apply --server-side "
    "-f https://github.com/kubernetes-sigs/lws/releases/download/v0.9.0/manifests.yaml, "
    "or write kubernetes.unit_kind: statefulset",
    "PodMonitor": "install the Prometheus operator, or write kubernetes.monitors: false",
    "TidemillDeployment": "install it with tidemill controller --definition | kubectl apply --server-side -f -",
    "Certificate": "install cert-manager 1.15 or newer, or leave out kubernetes.tls.issuer and make the Secrets",
    "ComputeDomain": "install NVIDIA's DRA driver for GPUs, or write kubernetes.compute_domain: false",
}

# Patterns of servers' messages. These errors have no codes, and their statuses mislead.
LACKS_RIGHT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" '
    r'in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
MISSING_NAMESPACE = re.compile(r'^namespaces "(?P<namespace>[^"]*)" not found$')
TERMINATING = "because it is being terminated"
SCHEMA = re.compile(r"^failed to create typed patch object \([^)]*\): (?P<why>.*)$", re.DOTALL)
DENIED = re.compile(r'^admission webhook "(?P<name>[^"]*)" denied the request: (?P<why>.*)$', re.DOTALL)
SILENT_WEBHOOK = re.compile(r'failed calling webhook "(?P<name>[^"]*)": (?P<why>.*)$', re.DOTALL)
FROZEN = re.compile(r"immutable|updates to \w+ spec for fields other than|may not change once set", re.IGNORECASE)
FIELD = re.compile(r"([A-Za-z][\w.\[\]]*): (?:Invalid value|Forbidden)")

OTHER_UID = re.compile(r"UID in precondition|uid mismatch|metadata\.uid: Invalid value")

CORRECT_OVERLAY = "correct kubernetes.overlay, or the field that writes it"
LONGEST_MESSAGE = 500  # characters of what a server says; assumed: whole pages come from proxies, not from servers

INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
OVERLOADED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
UNDECIDED = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)  # from a proxy that gave up waiting


class ProviderError(Exception):
    """An error that a user can cause and repair; its text is one sentence for them."""


class KubeconfigError(ProviderError):
    """There is no usable kubeconfig."""


class UnreachableError(ProviderError):
    """The API server gives no answer, so nothing can be said about the cluster."""


class NotServedError(ProviderError):
    """The cluster's API server does not serve a kind."""

    def __init__(self, api_version: str, kind: str) -> None:
        advice = INSTALL.get(kind, "install what defines it, or correct apiVersion and kind")
        super().__init__(f"the cluster does not serve {kind} of {api_version}; {advice}")


class ForeignError(ProviderError):
    """The object's name is taken by an object that Tidemill did not make."""

    def __init__(self, reference: Reference, managers: Sequence[str], *, is_the_plans: bool = False) -> None:
        """Build a message that names the object and the managers of its fields.

        `is_the_plans` says that the object has the plan's label, as objects applied from a rendered folder do.
        """
        owners = ", ".join(managers) or "nobody on record"
        fix = "delete it, or give this one another name: Tidemill never takes over what it did not create"
        if is_the_plans:
            fix = "set adopt: true to take it over, once nothing else applies the plan, or delete it"
        super().__init__(
            f"{reference} exists already and is not Tidemill's (its fields are managed by: {owners}); {fix}"
        )


class OtherPlanError(ProviderError):
    """The object's name is taken by an object of another plan."""

    def __init__(self, reference: Reference, plan: str) -> None:
        advice = "choose another kubernetes.namespace, or another name for one of the plans"
        if reference.kind == "Namespace":
            advice = "set kubernetes.create_namespace: false to share it, or choose another kubernetes.namespace"
        super().__init__(f"{reference} belongs to the plan {plan}; {advice}")


class SharedError(ProviderError):
    """A namespace to be deleted holds objects of other plans."""

    def __init__(self, reference: Reference, plans: Sequence[str]) -> None:
        whose = f"the plan{'s' if len(plans) > 1 else ''} {', '.join(plans)}"
        super().__init__(f"{reference} has objects of {whose} in it, which would go with it; destroy those first")


class NotReadyError(ProviderError):
    """An object that was stored, or may have been, is not ready. `reasons` has one entry for each known cause."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class PartlyStoredError(ProviderError):
    """Storing several objects stopped early, for `reasons`.

    `existing` is key -> manifest of the objects that exist, or may exist.
    """

    def __init__(self, existing: Mapping[str, Manifest], reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.existing = dict(existing)
        self.reasons = list(reasons)


class SeveralErrors(ProviderError):
    """One error for the errors of several objects, in the form in which Pulumi lists several reasons."""

    def __init__(self, errors: Sequence[ProviderError]) -> None:
        super().__init__("\n\t* ".join([f"{len(errors)} errors occurred:", *map(str, errors)]))


class NotGoneError(ProviderError):
    """An object still exists after its deletion was requested."""


class RefusedError(ProviderError):
    """The server answered with an error."""

    def __init__(self, subject: str, status: int, answer: Any) -> None:
        """Explain an `answer` with an error `status`: a Kubernetes Status or, from a proxy, any other JSON or text."""
        document = answer if isinstance(answer, dict) else {}
        self.status = status
        self.answer = answer
        self.server_message = _shorten(str(document.get("message") or answer or _status_phrase(status)).strip())
        self.sentence = _explain(status, self.server_message)
        super().__init__(f"{subject}: {self.sentence}")

    @property
    def is_about_rights(self) -> bool:
        """True if the user lacks the right to make the request."""
        return self.status == HTTPStatus.FORBIDDEN and LACKS_RIGHT.search(self.server_message) is not None

    @property
    def may_have_taken_effect(self) -> bool:
        """True if the server may have carried out the request, or may still do so."""
        return self.status in UNDECIDED

    @property
    def is_invalid(self) -> bool:
        """True if the object is invalid in any namespace, by the server's own validation."""
        return self.status in INVALID or SCHEMA.match(self.server_message) is not None

    @property
    def is_about_the_manifest(self) -> bool:
        """True if the server or a webhook says that the manifest itself is invalid."""
        return self.is_invalid or DENIED.match(self.server_message) is not None

    @property
    def silent_webhook(self) -> str | None:
        """The admission webhook that did not answer the server, or None."""
        found = SILENT_WEBHOOK.search(self.server_message)
        return found["name"] if found else None

    @property
    def is_about_frozen_fields(self) -> bool:
        """True if the request changes a field that is immutable while the object exists.

        Servers have no code for this error, only a text.
        """
        return FROZEN.search(self.server_message) is not None

    @property
    def misses_namespace(self) -> bool:
        """True if the object's namespace does not exist."""
        return self.status == HTTPStatus.NOT_FOUND and MISSING_NAMESPACE.match(self.server_message) is not None

    @property
    def fields(self) -> list[str]:
        """The paths of the fields that the error is about, such as `spec.selector`.

        If the answer has no list of them, they are taken from its message.
        """
        details = self.answer.get("details") if isinstance(self.answer, dict) else None
        causes = details.get("causes") if isinstance(details, dict) else None
        fields = [each.get("field") for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []
        return [each for each in fields if each and isinstance(each, str)] or FIELD.findall(self.server_message)


def _status_phrase(status: int) -> str:
    """Return HTTP's name of a status, such as `Not Found`, or `status NUMBER` if HTTP has none."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else f"status {status}"


def _shorten(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."


def _explain(status: int, message: str) -> str:
    """Return the server's message in plain words and, where it is known, what to do about it."""
    if status == HTTPStatus.UNAUTHORIZED:
        return (
            "the API server does not accept the kubeconfig's credentials (401 Unauthorized); "
            "renew them, or choose another context"
        )
    if status == HTTPStatus.FORBIDDEN and (right := LACKS_RIGHT.search(message)):
        return _explain_missing_right(**right.groupdict())
    if status == HTTPStatus.FORBIDDEN and TERMINATING in message:
        return "its namespace is being deleted; wait until it is gone, then repeat"
    if status == HTTPStatus.NOT_FOUND and (missing := MISSING_NAMESPACE.match(message)):
        return f"namespace {missing['namespace']} does not exist; create it first"
    if OTHER_UID.search(message):
        return "somebody deleted it, or made it anew, at this very moment; repeat"
    if status == HTTPStatus.CONFLICT:
        return f"another program sets the same fields ({message}); decide which of the two shall, and repeat"
    if silent := SILENT_WEBHOOK.search(message):
        return (
            f"the admission webhook {silent['name']} does not answer ({silent['why']}); check that its controller runs"
        )
    if mistake := SCHEMA.match(message):  # its status is 500, though the manifest is wrong
        return f"the API server finds it invalid ({mistake['why']}); {CORRECT_OVERLAY}"
    if denied := DENIED.match(message):  # its status is 403, though rights are not missing
        return f"the admission webhook {denied['name']} finds it invalid ({denied['why']}); {CORRECT_OVERLAY}"
    if status in INVALID:
        return f"the API server finds it invalid ({message}); {CORRECT_OVERLAY}"
    if status in OVERLOADED:
        return f"the API server is overloaded ({status}: {message}); repeat later"
    return f"the API server refuses ({status}: {message})"


def _explain_missing_right(user: str, verb: str, resource: str, group: str, namespace: str | None) -> str:
    what = f"{resource}.{group}" if group else resource
    where, kind = (f"in namespace {namespace}", "Role") if namespace else ("in the whole cluster", "ClusterRole")
    is_whole = "/" not in resource and verb in ("get", "create", "patch", "delete")
    needed = "get, create, patch and delete" if is_whole else verb
    return (
        f"the kubeconfig's user {user} may not {verb} {what} {where}; "
        f"bind a {kind} to it that allows {needed} of them, or choose another context"
    )

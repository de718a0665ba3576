"""The API server as this provider uses it: get, list, server-side apply, delete. Manifests in, manifests out.

Plain REST paths, with one discovery call for each apiVersion in use. Rejected: `kubernetes.dynamic`, which asks for
every kind of the cluster first and keeps them in a file that other programs share.

Every call ends: with its answer, or with an error that is a sentence (`errors.py`).
"""

import json
import ssl
import threading
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration
from urllib3.connectionpool import ConnectionPool

from stacks.provider.drift import FIELD_MANAGER
from stacks.provider.errors import KubeconfigError, NotServedError, RefusedError, UnreachableError
from stacks.provider.manifest import Manifest, Reference

__all__ = ["DEFAULT_NAMESPACE", "Api", "connect"]

CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 40  # admission webhooks may take 30 s
CONNECTIONS = 64  # kept; more waits at once open more
APPLY = "application/apply-patch+yaml"  # JSON is YAML


DEFAULT_NAMESPACE = "default"


class Retries(urllib3.Retry):
    """Any call may be repeated without harm: after a dropped connection, and when an overloaded server says so.

    A server that hangs is not asked again: it would only hang for longer.
    """

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """The retries that are left. Raises `error` when it is not to be repeated."""
        if isinstance(error, urllib3.exceptions.TimeoutError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


RETRIES = Retries(total=3, connect=0, allowed_methods=None, raise_on_status=False)


def connect(context: str | None) -> "Api":
    """By the kubeconfig of KUBECONFIG or of the home folder; the context named, else its current one. Calls nobody.

    Raises KubeconfigError.
    """
    settings = Configuration()
    settings.retries = RETRIES
    settings.connection_pool_maxsize = CONNECTIONS
    try:
        config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        raise KubeconfigError(_about_kubeconfig(context, error)) from error
    return Api(ApiClient(settings))


class Api:
    """One cluster. May be used by many threads."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._kinds: dict[str, list[Manifest]] = {}  # apiVersion -> what discovery says of it
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """`https://10.0.0.1:6443`."""
        return str(self._client.configuration.host)

    def require_answer(self) -> None:
        """Ask for what every authenticated user may ask. Raises what is wrong with server or credentials."""
        self._call("GET", "/api", f"cluster at {self.address}", answer_timeout_s=CONNECT_TIMEOUT_S)

    def require_kind(self, api_version: str, kind: str) -> None:
        """Raises NotServedError for a kind that the cluster does not know."""
        self._discovered(api_version, kind)

    def get(self, reference: Reference) -> Manifest | None:
        """The live object, or None."""
        try:
            return self._object("GET", self._path(reference), str(reference))
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list_all(self, api_version: str, kind: str, namespace: str, **selectors: str) -> list[Manifest]:
        """All of a kind in `namespace` (or everywhere, when empty); selectors as `labelSelector="a=b"`."""
        path = self._collection(Reference(api_version, kind, namespace, ""), everywhere=not namespace)
        items = self._object("GET", path, f"list of {kind}s", list(selectors.items()))["items"] or []
        return [{"apiVersion": api_version, "kind": kind} | each for each in items]  # lists omit both

    def apply(self, manifest: Manifest, *, force: bool, dry_run: bool = False) -> Manifest:
        """Server-side apply, strict; what the server makes of it. Without `force` another's field is not taken."""
        reference = Reference.of(manifest)
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), ("force", str(force).lower())]
        if dry_run:
            query.append(("dryRun", "All"))
        return self._object("PATCH", self._path(reference), str(reference), query, manifest, APPLY)

    def delete(self, reference: Reference) -> None:
        """Begin to delete in the foreground: it stays until what it owns is gone. Nothing to do when it is gone."""
        try:
            self._call("DELETE", self._path(reference), str(reference), body={"propagationPolicy": "Foreground"})
        except RefusedError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _path(self, reference: Reference) -> str:
        return f"{self._collection(reference)}/{quote(reference.name, safe='')}"

    def _collection(self, reference: Reference, *, everywhere: bool = False) -> str:
        """`/apis/apps/v1/namespaces/demo/deployments`."""
        resource = self._discovered(reference.api_version, reference.kind)
        namespace = quote(reference.namespace or DEFAULT_NAMESPACE, safe="")
        scope = f"/namespaces/{namespace}" if resource["namespaced"] and not everywhere else ""
        return f"{_root(reference.api_version)}{scope}/{resource['name']}"

    def _discovered(self, api_version: str, kind: str) -> Manifest:
        """What the server says of a kind; asked again as long as it is not there, since a CRD may come at any time."""
        with self._lock:
            known = self._find(api_version, kind)
        if known is None:
            try:
                listed = self._object("GET", _root(api_version), f"kinds of {api_version}")
            except RefusedError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    raise NotServedError(api_version, kind) from error
                raise
            with self._lock:
                self._kinds[api_version] = listed["resources"]
                known = self._find(api_version, kind)
        if known is None:
            raise NotServedError(api_version, kind)
        return known

    def _find(self, api_version: str, kind: str) -> Manifest | None:
        listed = self._kinds.get(api_version, [])
        return next((each for each in listed if each["kind"] == kind and "/" not in each["name"]), None)

    def _object(self, *request: Any) -> Manifest:
        """As `_call`; a server that answers well answers with an object."""
        answer = self._call(*request)
        assert isinstance(answer, dict), f"{request[:3]} answered {answer!r}"
        return answer

    def _call(
        self,
        verb: str,
        path: str,
        subject: str,
        query: list[tuple[str, str]] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Any:
        """One request. Raises RefusedError, or UnreachableError without an answer; both name the `subject`."""
        request = self._client.param_serialize(
            verb,
            path,
            query_params=query or [],
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=(CONNECT_TIMEOUT_S, answer_timeout_s))
            answer = _document(response.read())  # type: ignore[no-untyped-call]
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise UnreachableError(_about_connection(self.address, error)) from error
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise RefusedError(subject, response.status, answer)
        return answer


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _document(body: bytes) -> Any:
    """JSON, or the text that stands there instead."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _about_kubeconfig(context: str | None, error: Exception) -> str:
    wanted = f"context {context}" if context else "a current context"
    reason = " ".join(str(error).split()).rstrip(".")
    return (
        f"no usable kubeconfig with {wanted} ({reason}); "
        "set KUBECONFIG to a valid file, and `context` to one of `kubectl config get-contexts`"
    )


def _about_connection(address: str, error: Exception) -> str:
    """Why there is no answer. urllib3 wraps the cause, and the Kubernetes client turns TLS errors into its own."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"the certificate of the API server at {address} is not trusted; "
            "the kubeconfig's certificate-authority must be that cluster's"
        )
    if isinstance(error, ApiException) or isinstance(_innermost(error), ssl.SSLError):
        return (
            f"no TLS connection with the API server at {address} ({_brief(error)}); check the kubeconfig's certificates"
        )
    return (
        f"the API server at {address} does not answer ({_brief(error)}); "
        "check that the cluster runs and can be reached from here, or choose another context"
    )


def _brief(error: Exception) -> str:
    """The innermost error in a few words."""
    inner = _innermost(error)
    if isinstance(inner, urllib3.exceptions.ConnectTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S} s"
    if isinstance(inner, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return " ".join(str(inner).split())


def _innermost(error: BaseException) -> BaseException:
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error.__cause__
    return _innermost(inner) if inner is not None and inner is not error else error

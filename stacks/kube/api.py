"""A client of the Kubernetes API server: get, list, server-side apply, merge, create, delete, all of plain manifests.

It uses plain REST paths, with one discovery call for each apiVersion in use. Rejected: `kubernetes.dynamic`, which asks
for every kind of the cluster first and keeps them in a file that other programs share.
"""

import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

from stacks.kube.connection import CONNECT_TIMEOUT_S, Connection
from stacks.kube.drift import FIELD_MANAGER
from stacks.kube.errors import NotServedError, ProviderError, RefusedError
from stacks.kube.manifest import Manifest, Reference
from stacks.kube.shape import GROUP, KINDS, REVIEW, STORED, Shape, list_shapes, misfit, object_shapes

__all__ = ["DEFAULT_NAMESPACE", "Api", "connect", "connect_inside"]

APPLY = "application/apply-patch+yaml"  # JSON is YAML
MERGE = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
DEFAULT_NAMESPACE = "default"
POD_TIMEOUT_S = 5  # assumed: a gateway answers at once, and a policy may let nothing through to it
REVIEWS, REVIEW_KIND = "authorization.k8s.io/v1", "SelfSubjectAccessReview"


def connect(context: str | None, kubeconfig: str | None = None) -> "Api":
    """Return an `Api` for a kubeconfig context (None: the current one). No request is made yet.

    Raises KubeconfigError if the kubeconfig is unusable.
    """
    return Api(Connection.from_kubeconfig(context, kubeconfig))


def connect_inside() -> "Api":
    """Return an `Api` for the cluster in which this process's pod runs. No request is made yet.

    Raises KubeconfigError if this process is not in a pod with a service account.
    """
    return Api(Connection.from_service_account())


class Api:
    """The API of one cluster. May be used by many threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kinds: dict[str, list[Manifest]] = {}  # apiVersion -> what discovery says of it
        self._lock = threading.Lock()

    def require_answer(self) -> None:
        """Raise ProviderError if the server does not answer or rejects the credentials."""
        cluster = f"cluster at {self._connection.address}"
        self._connection.request("GET", "/api", cluster, answer_timeout_s=CONNECT_TIMEOUT_S)

    def now(self) -> float:
        """Return the API server's time, in seconds since 1970. Objects' timestamps follow this clock.

        Raises ProviderError if the server does not answer.
        """
        if (server_time := self._connection.server_time) is None:
            self.require_answer()
            server_time = self._connection.server_time
        assert server_time is not None
        return server_time

    def require_kind(self, api_version: str, kind: str) -> None:
        """Raise NotServedError if the cluster does not serve the kind."""
        self._find_resource(api_version, kind)

    def versions(self, group: str) -> list[str]:
        """Return the versions of an API group that the cluster serves, preferred one first; empty if it serves none."""
        try:
            found = self._request_object("GET", f"/apis/{group}", f"versions of {group}", (GROUP,))
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return []
            raise
        preferred = found["preferredVersion"]["version"]
        return sorted((each["version"] for each in found["versions"]), key=lambda version: version != preferred)

    def may(self, verb: str, api_version: str, kind: str, namespace: str) -> bool:
        """Return whether the user may `verb` (such as `create`) objects of a kind.

        A namespaced kind is asked about in `namespace`. Raises NotServedError if the cluster does not serve the
        kind.
        """
        resource = self._find_resource(api_version, kind)
        group = api_version.rpartition("/")[0]
        attributes = {"verb": verb, "group": group, "resource": resource["name"]}
        if resource["namespaced"]:
            attributes["namespace"] = namespace
        review = {"apiVersion": REVIEWS, "kind": REVIEW_KIND, "spec": {"resourceAttributes": attributes}}
        path = f"{_root(REVIEWS)}/selfsubjectaccessreviews"
        answer = self._request_object("POST", path, "question about rights", (REVIEW,), body=review)
        return bool(answer["status"]["allowed"])

    def get(self, reference: Reference) -> Manifest | None:
        """Return the live object; None if it does not exist."""
        try:
            shapes = (*object_shapes(reference.kind), STORED)
            return _add_identity(reference, self._request_object("GET", self._path(reference), str(reference), shapes))
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list_all(self, api_version: str, kind: str, namespace: str, **selectors: str) -> list[Manifest]:
        """Return all objects of a kind in `namespace`. If that is empty, return those in all namespaces.

        `selectors` are query parameters, such as `labelSelector="a=b"`.
        """
        path = self._collection(Reference(api_version, kind, namespace, ""), everywhere=not namespace)
        query = list(selectors.items())
        items = self._request_object("GET", path, f"list of {kind}s", list_shapes(kind), query=query)["items"] or []
        return [{"apiVersion": api_version, "kind": kind} | each for each in items]  # lists omit both

    def list_metadata(self, api_version: str, kind: str, namespace: str, **selectors: str) -> list[Manifest]:
        """Return only the metadata of all objects of a kind in `namespace`, for kinds whose objects may be large."""
        path = self._collection(Reference(api_version, kind, namespace, ""), everywhere=False)
        query = list(selectors.items())
        items = (
            self._request_object("GET", path, f"list of {kind}s", list_shapes(""), query=query, accept=METADATA)[
                "items"
            ]
            or []
        )
        return [each | {"apiVersion": api_version, "kind": kind} for each in items]

    def ask_pod(self, pod: Reference, port: int, path: str, shape: Shape) -> Manifest:
        """Return the JSON that a pod answers at an HTTP port, even if the answer's HTTP status is an error.

        The request goes through the API server.

        Raises ProviderError if the API server refuses or is unreachable, or if the answer does not fit `shape`.
        """
        through = f"{self._path(pod)}:{port}/proxy{path}"
        try:
            answer = self._connection.request("GET", through, str(pod), answer_timeout_s=POD_TIMEOUT_S)
        except RefusedError as error:
            if misfit(error.answer, shape):  # an error of the API server itself
                reason = error.sentence if error.is_about_rights else error.server_message
                raise ProviderError(f"{pod}: {reason}") from None
            answer = error.answer
        if wrong := misfit(answer, shape):
            raise ProviderError(f"{pod} answers at port {port}, but not as expected: {wrong}")
        return cast(Manifest, answer)

    def read_pod(self, pod: Reference, port: int, path: str) -> str:
        """Return the text that a pod answers at an HTTP port. The request goes through the API server.

        Raises ProviderError if the pod answers with an error or not at all.
        """
        through = f"{self._path(pod)}:{port}/proxy{path}"
        return self._connection.read_text(through, str(pod), answer_timeout_s=POD_TIMEOUT_S)

    def apply(self, manifest: Manifest, *, force: bool, dry_run: bool = False, uid: str | None = None) -> Manifest:
        """Apply `manifest` server-side with strict checks, and return the resulting object. A `dry_run` stores nothing.

        Without `force` the server changes no field that another manager owns. With `uid` it refuses unless an
        object with that uid exists.
        """
        reference = Reference.from_manifest(manifest)
        if uid is not None:
            manifest = manifest | {"metadata": manifest["metadata"] | {"uid": uid}}
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), ("force", str(force).lower())]
        if dry_run:
            query.append(("dryRun", "All"))
        path, subject = self._path(reference), str(reference)
        shapes = object_shapes(reference.kind) if dry_run else (*object_shapes(reference.kind), STORED)
        answer = self._request_object("PATCH", path, subject, shapes, query=query, body=manifest, content_type=APPLY)
        return _add_identity(reference, answer)

    def merge(self, reference: Reference, changes: Manifest, *, manager: str, part: str = "") -> None:
        """Merge `changes` into an object, or into its subresource `part`, such as `scale`. A null removes a field.

        Raises ProviderError if the API server refuses or is unreachable.
        """
        path = f"{self._path(reference)}/{part}" if part else self._path(reference)
        query = [("fieldManager", manager)]
        self._connection.request("PATCH", path, str(reference), query=query, body=changes, content_type=MERGE)

    def create(self, manifest: Manifest, *, manager: str) -> None:
        """Create an object. Raises ProviderError if it exists, or if the API server refuses or is unreachable."""
        reference = Reference.from_manifest(manifest)
        query = [("fieldManager", manager)]
        self._connection.request("POST", self._collection(reference), str(reference), query=query, body=manifest)

    def delete(self, reference: Reference, uid: str | None = None, *, immediately: bool = False) -> None:
        """Request a foreground deletion: the object stays until everything it owns is gone.

        A missing object is no error.

        With `uid`, only the object with that uid is deleted, and not a newer one of the same name: a request may arrive
        late, or twice. With `immediately`, the server removes a pod without waiting for its kubelet.
        """
        way: dict[str, Any] = {"propagationPolicy": "Foreground"}
        if immediately:
            way = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        try:
            how = way | ({"preconditions": {"uid": uid}} if uid else {})
            self._connection.request("DELETE", self._path(reference), str(reference), body=how)
        except RefusedError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def _path(self, reference: Reference) -> str:
        return f"{self._collection(reference)}/{quote(reference.name, safe='')}"

    def _collection(self, reference: Reference, *, everywhere: bool = False) -> str:
        """Return the URL path of all objects of a kind: `/apis/apps/v1/namespaces/demo/deployments`.

        If `everywhere`, it is the path of the objects in all namespaces.
        """
        resource = self._find_resource(reference.api_version, reference.kind)
        namespace = quote(reference.namespace or DEFAULT_NAMESPACE, safe="")
        scope = f"/namespaces/{namespace}" if resource["namespaced"] and not everywhere else ""
        return f"{_root(reference.api_version)}{scope}/{resource['name']}"

    def _find_resource(self, api_version: str, kind: str) -> Manifest:
        """Return the discovery entry of a kind, with its plural name.

        Raises NotServedError if the cluster does not serve it.

        Missing kinds are looked up again at each call, since a CRD may be added at any time.
        """
        with self._lock:
            known = self._find(api_version, kind)
        if known is None:
            try:
                listed = self._request_object("GET", _root(api_version), f"kinds of {api_version}", (KINDS,))
            except RefusedError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    raise NotServedError(api_version, kind) from error
                raise
            with self._lock:
                self._kinds[api_version] = listed["resources"] or []
                known = self._find(api_version, kind)
        if known is None:
            raise NotServedError(api_version, kind)
        return known

    def _find(self, api_version: str, kind: str) -> Manifest | None:
        listed = self._kinds.get(api_version, [])
        return next((each for each in listed if each["kind"] == kind and "/" not in each["name"]), None)

    def _request_object(self, verb: str, path: str, subject: str, shapes: Sequence[Shape], **more: Any) -> Manifest:
        """Send a request, and return the object or list in the answer.

        `shapes` cover every field that we read. Raises UnreachableError if the answer does not fit them: then no API
        server has sent it.
        """
        answer: Manifest = self._connection.request(verb, path, subject, **more)
        if wrong := misfit(answer, *shapes):
            raise self._connection.unexpected_answer(f"{subject}: {wrong}")
        return answer


def _add_identity(reference: Reference, answer: Manifest) -> Manifest:
    """Return the answered object with the requested apiVersion and kind, even if the answer leaves them out."""
    return answer | {"apiVersion": reference.api_version, "kind": reference.kind}


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"

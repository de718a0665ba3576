"""A fake API server: a real HTTP server in this process, with the real client in front and a dict behind.

It is fake because a real one cannot be told to do at a given moment what goes wrong once in a thousand times: store an
object and never answer, or lose one between two requests. It knows a few kinds and no schema: whatever is applied is
stored as it is, with the metadata that a server gives. A user may do all that is not in `denied`. What it answers to a
wrong uid is what Kubernetes 1.36 answers; `tests/cluster/test_lifecycle.py` holds that on a real one.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import ApiClient, Configuration

from stacks.kube.api import Api
from stacks.kube.connection import RETRIES, Connection

__all__ = ["FakeApi", "running_fake_api"]

Object = dict[str, Any]
Interference = Callable[["FakeApi"], None]

KINDS = {
    "/api/v1": [
        {"name": "namespaces", "kind": "Namespace", "namespaced": False},
        {"name": "nodes", "kind": "Node", "namespaced": False},
        {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "serviceaccounts", "kind": "ServiceAccount", "namespaced": True},
        {"name": "services", "kind": "Service", "namespaced": True},
        {"name": "resourcequotas", "kind": "ResourceQuota", "namespaced": True},
        {"name": "persistentvolumeclaims", "kind": "PersistentVolumeClaim", "namespaced": True},
        {"name": "secrets", "kind": "Secret", "namespaced": True},
    ],
    "/apis/apps/v1": [
        {"name": "deployments", "kind": "Deployment", "namespaced": True},
        {"name": "statefulsets", "kind": "StatefulSet", "namespaced": True},
    ],
    "/apis/networking.k8s.io/v1": [{"name": "networkpolicies", "kind": "NetworkPolicy", "namespaced": True}],
    "/apis/scheduling.k8s.io/v1": [{"name": "priorityclasses", "kind": "PriorityClass", "namespaced": False}],
    "/apis/storage.k8s.io/v1": [{"name": "storageclasses", "kind": "StorageClass", "namespaced": False}],
    "/apis/leaderworkerset.x-k8s.io/v1": [{"name": "leaderworkersets", "kind": "LeaderWorkerSet", "namespaced": True}],
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
COLLECTIONS = {each["name"] for kinds in KINDS.values() for each in kinds}


class FakeApi:
    """What is stored, by path; and what interferes, by verb: each is called once, the first one first."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.forbidden: dict[str, str] = {}  # path -> what the server says of the user's rights
        self.denied: set[tuple[str, str]] = set()  # (verb, resource) that the user has no right to
        self.kinds = dict(KINDS)  # apiVersion's path -> what it serves
        self.answers: dict[str, tuple[int, Object | str]] = {}  # path -> what a pod answers there, JSON or text
        self.refused: dict[str, tuple[int, str]] = {}  # path -> how a dry run of it ends
        self.requests: list[tuple[str, str]] = []  # verb and path of each, dry runs left out
        self.before: dict[str, list[Interference]] = {}
        self.after: dict[str, list[Interference]] = {}  # before the answer leaves
        self.lock = threading.RLock()

    def store(self, path: str, manifest: Object, manager: str = "tidemill") -> Object:
        """As server-side apply does: what is there keeps its uid."""
        with self.lock:
            there = self.objects.get(path)
            metadata = {
                "uid": there["metadata"]["uid"] if there else str(uuid.uuid4()),
                "generation": 1,
                "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": {"f:metadata": {}}}],
            }
            kept = {key: there[key] for key in ("status",) if there and key in there}
            stored = manifest | kept | {"metadata": manifest["metadata"] | metadata}
            self.objects[path] = stored
            return stored

    def interfere(self, hooks: dict[str, list[Interference]], verb: str) -> None:
        """Let the next interference of that verb happen."""
        if waiting := hooks.get(verb):
            waiting.pop(0)(self)

    def answer(
        self, verb: str, path: str, query: dict[str, list[str]], body: Object | None
    ) -> tuple[int, Object | str]:
        """Status and document."""
        if path == "/api":
            return 200, {"versions": ["v1"]}
        if path in self.kinds:
            return 200, {"resources": self.kinds[path]}
        if versions := [each.rpartition("/")[2] for each in self.kinds if each.rpartition("/")[0] == path]:
            served = [{"version": each} for each in versions]
            return 200, {"versions": served, "preferredVersion": served[0]}
        if path == REVIEWS:
            asked = (body or {})["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if path in self.forbidden:
            return _status(403, self.forbidden[path])
        if path in self.answers:
            return self.answers[path]
        with self.lock:
            there = self.objects.get(path)
            if verb == "GET" and path.rpartition("/")[2] in COLLECTIONS:
                label = query.get("labelSelector", [""])[0]
                return 200, {"items": [each for at, each in self.objects.items() if _is_listed(at, each, path, label)]}
            if verb == "GET":
                return (200, there) if there else _status(404, f"{path} not found")
            if refusal := _other_uid(verb, body or {}, there):
                return refusal
            if verb == "DELETE":
                return (200, self.objects.pop(path)) if there else _status(404, f"{path} not found")
            assert body is not None
            if "dryRun" in query and path in self.refused:
                return _status(*self.refused[path])
            return 200, there or body if "dryRun" in query else self.store(path, body)


def _is_listed(at: str, stored: Object, path: str, label: str) -> bool:
    """Whether an object has the labels that are asked for, or has them with a value."""
    labels = stored["metadata"].get("labels", {})
    wanted = [each.partition("=") for each in label.split(",") if each]
    has_all = all(labels.get(key) == value if equals else key in labels for key, equals, value in wanted)
    return at.startswith(f"{path}/") and has_all


def _other_uid(verb: str, body: Object, there: Object | None) -> tuple[int, Object] | None:
    """What Kubernetes answers to a request for another object than the one that is there."""
    found = there["metadata"]["uid"] if there else None
    wanted = (body.get("preconditions") or body.get("metadata") or {}).get("uid", found)
    if wanted == found:
        return None
    if verb == "DELETE":
        return _status(409, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}")
    if there is None:
        return _status(
            409, f"uid mismatch: the provided object specified uid {wanted}, and no existing object was found"
        )
    return _status(422, f'metadata.uid: Invalid value: "{wanted}": field is immutable')


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {"kind": "Status", "code": code, "message": message}


@contextmanager
def running_fake_api() -> Iterator[tuple[FakeApi, Api]]:
    """The server, and the provider's way to it."""
    fake = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body leave together: apart, each answer waits 40 ms for an acknowledgement

        def _serve(self) -> None:
            url, length = urlsplit(self.path), int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = parse_qs(url.query)
            is_about_objects = url.path not in {"/api", REVIEWS, *fake.kinds} and "dryRun" not in query
            if is_about_objects:
                fake.requests.append((self.command, url.path))
                fake.interfere(fake.before, self.command)
            status, document = fake.answer(self.command, url.path, query, body)
            if is_about_objects:
                fake.interfere(fake.after, self.command)
            answer = (document if isinstance(document, str) else json.dumps(document)).encode()
            with suppress(BrokenPipeError):  # who gave up has gone
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    settings = Configuration(host=f"http://127.0.0.1:{server.server_port}")
    settings.retries = RETRIES
    try:
        yield fake, Api(Connection(ApiClient(settings)))
    finally:
        server.shutdown()
        server.server_close()


def hang(seconds: float) -> Interference:
    """An answer that comes later than anybody waits."""
    return lambda fake: time.sleep(seconds)

"""Pulumi's provider protocol: each request decoded, handed to `kube/lifecycle.py`, and its outcome encoded.

Written on the protocol itself. The SDK's own server answers a failure with a traceback, and cannot say that a
resource was created and is not ready (`ErrorResourceInitFailed`), without which such a resource is in no state and
`destroy` never finds it.

A resource's inputs are its manifest. Its outputs only name the object: what the server adds is the server's, and a look
at the live object (`Read`) gives the inputs as found. Every resource asks to be refreshed before each update
(`refresh_before_update`), so that a hand edit is seen by a plain `pulumi preview` and undone by a plain `pulumi up`.

Protocol: https://github.com/pulumi/pulumi/blob/master/proto/pulumi/provider.proto
"""
# ruff: noqa: N802  the methods' names are the protocol's

import functools
import json
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from stacks.kube import lifecycle
from stacks.kube.api import Api
from stacks.kube.diff import Change, Difference, Path, differences, path_text
from stacks.kube.errors import NotReadyError, ProviderError
from stacks.kube.lifecycle import Stored
from stacks.kube.manifest import Manifest, Reference, type_token
from stacks.kube.waiting import Patience
from stacks.provider import config, occupants
from stacks.provider.engine import Engine
from stacks.provider.session import Session
from stacks.provider.wire import has_unknown, to_plain, to_struct

__all__ = ["Servicer"]

DEFAULT_TIMEOUT_S = 600

# A change of these is another object.
IDENTITY: set[Path] = {("kind",), ("metadata", "name"), ("metadata", "namespace")}

KINDS = {
    Change.ADD: (provider_pb2.PropertyDiff.ADD, provider_pb2.PropertyDiff.ADD_REPLACE),
    Change.UPDATE: (provider_pb2.PropertyDiff.UPDATE, provider_pb2.PropertyDiff.UPDATE_REPLACE),
    Change.DELETE: (provider_pb2.PropertyDiff.DELETE, provider_pb2.PropertyDiff.DELETE_REPLACE),
}

Answer = TypeVar("Answer")
Rpc = Callable[[Any, Any], Answer]


class InitFailed(Exception):
    """The resource is there and belongs into the state, but does not do what it should."""

    def __init__(self, resource_id: str, inputs: Struct, outputs: Struct, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.detail = provider_pb2.ErrorResourceInitFailed(
            id=resource_id, properties=outputs, inputs=inputs, reasons=reasons, refresh_before_update=True
        )

    @classmethod
    def of(cls, manifest: Manifest, reasons: list[str]) -> "InitFailed":
        """Return the failure of an object that exists and is not ready, with the reasons."""
        return cls(Reference.of(manifest).id, to_struct(manifest), _outputs(manifest), reasons)


def answered(rpc: Rpc[Answer]) -> Callable[[Any, Any, grpc.ServicerContext], Answer]:
    """Turn what `rpc` raises into a status: a sentence for the user, never a traceback."""

    @functools.wraps(rpc)
    def call(self: "Servicer", request: Any, context: grpc.ServicerContext) -> Answer:
        try:
            return rpc(self, request)
        except InitFailed as error:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error), error.detail)
        except ProviderError as error:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:  # noqa: BLE001  the one place where our own mistakes must not reach the user raw
            self.engine.debug(traceback.format_exc())
            brief = f"{type(error).__name__}: {error}".splitlines()[0]
            _abort(context, grpc.StatusCode.INTERNAL, f"this is a bug in tidemill ({brief}); `--debug` shows where")

    return call


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """One configured provider."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._cancelled = threading.Event()
        self._session: Session | None = None
        self._made: set[str] = set()  # uids of what this run has made or taken up, which it never deletes
        self._new: set[Reference] = set()  # what is listed for the first time, and not awaited one by one
        self._arriving: dict[Reference, str] = {}  # of these, the uids of what was made and is not yet awaited

    @answered
    def Handshake(self, request: provider_pb2.ProviderHandshakeRequest) -> provider_pb2.ProviderHandshakeResponse:
        """Nothing special is understood: the engine keeps the marks of secrets itself."""
        return provider_pb2.ProviderHandshakeResponse()

    @answered
    def GetPluginInfo(self, request: empty_pb2.Empty) -> plugin_pb2.PluginInfo:
        """The version."""
        return plugin_pb2.PluginInfo(version=version("tidemill"))

    @answered
    def GetSchema(self, request: provider_pb2.GetSchemaRequest) -> provider_pb2.GetSchemaResponse:
        """No kinds: they are the cluster's."""
        return provider_pb2.GetSchemaResponse(schema=json.dumps({"name": "tidemill", "version": version("tidemill")}))

    @answered
    def CheckConfig(self, request: provider_pb2.CheckRequest) -> provider_pb2.CheckResponse:
        """Whether there is a cluster that can take the plan."""
        failures = config.check(to_plain(request.news))
        return _check_response(request, [(each.key, each.reason) for each in failures])

    @answered
    def DiffConfig(self, request: provider_pb2.DiffRequest) -> provider_pb2.DiffResponse:
        """Never a replacement: a context that is renamed must not delete what runs in it."""
        return _diff_response(list(differences(to_plain(request.old_inputs), to_plain(request.news))), [])

    @answered
    def Configure(self, request: provider_pb2.ConfigureRequest) -> provider_pb2.ConfigureResponse:
        """Takes the configuration; the cluster is reached when it is first needed."""
        self._session = Session(config.ClusterConfig.of(to_plain(request.args)).context)
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    @answered
    def Check(self, request: provider_pb2.CheckRequest) -> provider_pb2.CheckResponse:
        """Check that the manifest names an object of the resource's kind. The API server judges the rest."""
        news = to_plain(request.news)
        is_list = request.type in occupants.LISTS
        failures = occupants.misnamed(news, request.type) if is_list else _misnamed(news, request.type)
        return _check_response(request, failures)

    @answered
    def Diff(self, request: provider_pb2.DiffRequest) -> provider_pb2.DiffResponse:
        """Path by path, and which of them need a new object."""
        old, new = to_plain(request.old_inputs), to_plain(request.news)
        changed = list(differences(old, new))
        if not changed or request.type in occupants.LISTS:
            return _diff_response(changed, [])
        if other := [each for each in changed if _is_identity(each.path, old, new)]:
            return _diff_response(changed, other)
        frozen = self._frozen(new, changed)
        return _diff_response(changed, frozen, delete_first=bool(frozen))

    @answered
    def Create(self, request: provider_pb2.CreateRequest) -> provider_pb2.CreateResponse:
        """Waits until the object is ready, unless a list has it that is awaited later."""
        if request.type in occupants.LISTS:
            self._list(request, {"objects": {}}, to_plain(request.properties))
            return provider_pb2.CreateResponse(id=occupants.ID, properties=Struct())
        manifest = to_plain(request.properties)
        if request.preview:
            if not has_unknown(manifest):
                lifecycle.foresee_create(self._api(), manifest)
            return provider_pb2.CreateResponse(properties=_outputs(manifest))
        reference = Reference.of(manifest)
        is_new = reference in self._new
        try:
            stored = lifecycle.create(self._api(), manifest, self._patience(request), waits=not is_new)
        except NotReadyError as error:
            raise InitFailed.of(manifest, error.reasons) from error
        self._made.add(stored.uid)
        if is_new:
            self._arriving[reference] = stored.uid
        self._say_off(request.urn, reference, stored)
        return provider_pb2.CreateResponse(id=reference.id, properties=_outputs(manifest), refresh_before_update=True)

    @answered
    def Read(self, request: provider_pb2.ReadRequest) -> provider_pb2.ReadResponse:
        """The manifest as it is found in the cluster; without an id when the object is gone."""
        if request.type in occupants.LISTS:
            # To the engine a resource without properties is gone.
            return provider_pb2.ReadResponse(id=request.id, properties=Struct(), inputs=request.inputs)
        manifest = to_plain(request.inputs)
        if not manifest:
            raise ProviderError("Tidemill cannot import an object that it did not create; leave it out of the import")
        found = lifecycle.read(self._api(), manifest)
        if found is None:
            return provider_pb2.ReadResponse()
        if found.unsure:
            self.engine.warn(request.urn, f"hand edits were not looked for: {found.unsure}")
        reference = Reference.of(manifest)
        if found.missing:
            raise InitFailed.of(found.manifest, [f"{reference} is not ready: {found.missing}"])
        return provider_pb2.ReadResponse(
            id=reference.id,
            properties=_outputs(found.manifest),
            inputs=to_struct(found.manifest),
            refresh_before_update=True,
        )

    @answered
    def Update(self, request: provider_pb2.UpdateRequest) -> provider_pb2.UpdateResponse:
        """Waits until the object is ready, also when only that was missing."""
        old, manifest = to_plain(request.old_inputs), to_plain(request.news)
        if request.type in occupants.LISTS:
            self._list(request, old, manifest)
            return provider_pb2.UpdateResponse(properties=Struct())
        if request.preview:
            if not has_unknown(manifest):
                lifecycle.foresee_update(self._api(), old, manifest)
            return provider_pb2.UpdateResponse(properties=_outputs(manifest))
        reference = Reference.of(manifest)
        try:
            stored = lifecycle.update(self._api(), old, manifest, self._patience(request))
        except NotReadyError as error:
            raise InitFailed.of(manifest, error.reasons) from error
        self._say_off(request.urn, reference, stored)
        return provider_pb2.UpdateResponse(properties=_outputs(manifest), refresh_before_update=True)

    @answered
    def Delete(self, request: provider_pb2.DeleteRequest) -> empty_pb2.Empty:
        """Waits until the object is gone. What a replacement has made under the same name stays."""
        if request.type not in occupants.LISTS:
            lifecycle.delete(self._api(), to_plain(request.old_inputs), self._patience(request), spared=self._made)
        return empty_pb2.Empty()

    @answered
    def Cancel(self, request: empty_pb2.Empty) -> empty_pb2.Empty:
        """End every wait."""
        self._cancelled.set()
        return empty_pb2.Empty()

    def _api(self) -> Api:
        assert self._session is not None, "the engine configures a provider before it uses it"
        return self._session.api()

    def _list(self, request: Any, old: dict[str, Any], listed: dict[str, Any]) -> None:
        """Does what a list is for: what has left it goes, or what is new and was made becomes ready."""
        if request.preview:
            return
        if request.type == occupants.TOKEN:
            self._new |= occupants.new(old, listed)
            if gone := occupants.left(old, listed):
                lifecycle.delete_all(self._api(), gone, self._patience(request))
            return
        try:
            lifecycle.await_all(self._api(), self._arriving, self._patience(request))
        except NotReadyError as error:
            raise InitFailed(occupants.ID, to_struct(listed), Struct(), error.reasons) from error

    def _say_off(self, urn: str, reference: Reference, stored: Stored) -> None:
        if stored.is_off:
            self.engine.warn(urn, f"{reference} is scaled to 0 and serves nothing until somebody scales it")

    def _frozen(self, new: Manifest, changed: list[Difference]) -> list[Difference]:
        """Changes that need a new object, as far as the cluster can be asked."""
        api = self._session.api_if_reached() if self._session else None
        return lifecycle.frozen(api, new, changed) if api and not has_unknown(new) else []

    def _patience(self, request: Any) -> Patience:
        report = functools.partial(self.engine.progress, request.urn)
        return Patience(request.timeout or DEFAULT_TIMEOUT_S, self._cancelled, report)


def _outputs(manifest: Manifest) -> Struct:
    """What a state keeps beside the inputs: which object it is. Pulumi writes the state anew at each step."""
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace") if key in manifest["metadata"]}
    return to_struct({"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata})


def _misnamed(manifest: Manifest, token: str) -> list[tuple[str, str]]:
    """What a manifest lacks to name an object: (property, reason)."""
    failures = [
        (key, f"{key} is missing; a manifest needs it") for key in ("apiVersion", "kind") if not manifest.get(key)
    ]
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        failures.append(("metadata", "metadata.name is missing; a manifest needs it"))
    if not failures and type_token(manifest["apiVersion"], manifest["kind"]) != token:
        failures.append(("kind", f"{manifest['apiVersion']} {manifest['kind']} is not of the resource's type {token}"))
    return failures


def _is_identity(path: Path, old: Manifest, new: Manifest) -> bool:
    if path == ("apiVersion",):  # another version of the same group is the same object
        return bool(old["apiVersion"].rpartition("/")[0] != new["apiVersion"].rpartition("/")[0])
    return path in IDENTITY


def _check_response(request: provider_pb2.CheckRequest, failures: list[tuple[str, str]]) -> provider_pb2.CheckResponse:
    return provider_pb2.CheckResponse(
        inputs=request.news,
        failures=[provider_pb2.CheckFailure(property=key, reason=reason) for key, reason in failures],
    )


def _diff_response(
    changed: list[Difference], replacing: list[Difference], *, delete_first: bool = False
) -> provider_pb2.DiffResponse:
    if not changed:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME,
        diffs=sorted({str(each.path[0]) for each in changed}),
        replaces=sorted({str(each.path[0]) for each in replacing}),
        detailedDiff={
            path_text(each.path): provider_pb2.PropertyDiff(kind=KINDS[each.change][each in replacing], inputDiff=True)
            for each in changed
        },
        hasDetailedDiff=True,
        deleteBeforeReplace=delete_first,
    )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str, *details: Message) -> NoReturn:
    """End the call with a status; details travel in the trailer that gRPC reserves for them."""
    status = status_pb2.Status(code=code.value[0], message=text)
    for each in details:
        status.details.add().Pack(each)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)
    raise AssertionError("abort raises")

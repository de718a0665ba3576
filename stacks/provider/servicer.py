"""Pulumi's provider protocol: each request decoded, handed to `kube/object_set.py`, and its outcome encoded.

Written on the protocol itself. The SDK's own server answers a failure with a traceback, and cannot say that a
resource was created and is not ready (`ErrorResourceInitFailed`), without which such a resource is in no state and
`destroy` never finds it.

A resource's inputs are its manifest, or several (`objects.py`). Its outputs only name the object: what the server adds
is the server's, and a look at the live object (`Read`) gives the inputs as found. Every resource asks to be refreshed
before each update (`refresh_before_update`), so that a hand edit is seen by a plain `pulumi preview` and undone by a
plain `pulumi up`.

Protocol: https://github.com/pulumi/pulumi/blob/master/proto/pulumi/provider.proto
"""
# ruff: noqa: N802  the methods' names are the protocol's

import functools
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import empty_pb2
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from planner.facts.quantities import counted
from stacks.kube import lifecycle, object_set, waiting
from stacks.kube.api import Api
from stacks.kube.diff import DifferenceKind, differences, path_text
from stacks.kube.errors import NotReadyError, PartlyStoredError, ProviderError
from stacks.kube.lifecycle import StoredObject
from stacks.kube.manifest import OBJECTS, Manifest, Reference
from stacks.kube.object_set import Manifests
from stacks.kube.readiness import num_withheld
from stacks.kube.waiting import Patience
from stacks.provider import config, objects, occupants
from stacks.provider.departed import is_left_to_controller, list_leftovers
from stacks.provider.engine import Engine
from stacks.provider.objects import Changes
from stacks.provider.rollout import Rollout, rolled_phase
from stacks.provider.session import Session
from stacks.provider.wire import decode_struct, encode_struct, has_unknown, mark_secrets

__all__ = ["Servicer", "report_errors"]

DEFAULT_TIMEOUT_S = 600
INPUTS = ("properties", "inputs", "news", "old_inputs")  # the fields of requests that hold a resource's inputs
NOT_CHECKED = (
    "the cluster is not known before `up`, so nothing was checked against it: whether it answers and serves what "
    "the plan needs, each manifest, and what is there already"
)

KINDS = {
    DifferenceKind.ADD: (provider_pb2.PropertyDiff.ADD, provider_pb2.PropertyDiff.ADD_REPLACE),
    DifferenceKind.UPDATE: (provider_pb2.PropertyDiff.UPDATE, provider_pb2.PropertyDiff.UPDATE_REPLACE),
    DifferenceKind.DELETE: (provider_pb2.PropertyDiff.DELETE, provider_pb2.PropertyDiff.DELETE_REPLACE),
}

Answer = TypeVar("Answer")
Rpc = Callable[[Any, Any], Answer]


class InitFailed(Exception):
    """A resource exists but is not ready. It must be in Pulumi's state all the same."""

    def __init__(self, resource_id: str, inputs: Struct, outputs: Struct, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.detail = provider_pb2.ErrorResourceInitFailed(
            id=resource_id, properties=outputs, inputs=inputs, reasons=reasons, refresh_before_update=True
        )

    @classmethod
    def from_objects(cls, manifests: Manifests, token: str, reasons: list[str]) -> "InitFailed":
        """Return the error for a resource whose objects exist but are not all ready, for `reasons`."""
        inputs, named = encode_struct(objects.build_inputs(manifests, token)), objects.outputs(manifests, token)
        return cls(objects.resource_id(manifests), inputs, named, reasons)


def report_errors(rpc: Rpc[Answer]) -> Callable[[Any, Any, grpc.ServicerContext], Answer]:
    """Return `rpc` with its exceptions turned into gRPC statuses: a sentence for the user, never a traceback."""

    @functools.wraps(rpc)
    def call(self: "Servicer", request: Any, context: grpc.ServicerContext) -> Answer:
        try:
            return rpc(self, request)
        except InitFailed as error:
            error.detail.inputs.CopyFrom(_copy_secret_marks(request, error.detail.inputs))
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error), error.detail)
        except ProviderError as error:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:  # noqa: BLE001  the one place where our own mistakes must not reach the user raw
            self.engine.debug(traceback.format_exc())
            brief = f"{type(error).__name__}: {error}".splitlines()[0]
            _abort(context, grpc.StatusCode.INTERNAL, f"this is a bug in tidemill ({brief}); `--debug` shows where")

    return call


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """Pulumi's provider protocol, for the one cluster that the provider is configured for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._cancelled = threading.Event()
        self._rollout = Rollout(self._cancelled)
        self._session: Session | None = None
        self._made_uids: set[str] = set()  # uids of objects that this run has created or adopted: it never deletes them
        self._new_references: set[Reference] = set()  # objects new in the list: not awaited one by one
        self._arriving: dict[Reference, str] = {}  # objects stored without waiting, which `Arrivals` awaits -> uid
        self._set_members: set[Reference] = set()  # objects that this run declares as one of several

    @report_errors
    def Handshake(self, request: provider_pb2.ProviderHandshakeRequest) -> provider_pb2.ProviderHandshakeResponse:
        """Declare that we keep the marks of secrets, which the engine requires of providers with components."""
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True)

    @report_errors
    def GetPluginInfo(self, request: empty_pb2.Empty) -> plugin_pb2.PluginInfo:
        """Return the provider's version."""
        return plugin_pb2.PluginInfo(version=version("tidemill"))

    @report_errors
    def CheckConfig(self, request: provider_pb2.CheckRequest) -> provider_pb2.CheckResponse:
        """Return the mistakes in the provider's configuration, also the mistakes that only its cluster can show."""
        given = decode_struct(request.news)
        if has_unknown(given):
            self.engine.warn(request.urn, NOT_CHECKED)
        failures = config.check(given)
        return _check_response(request, [(each.key, each.reason) for each in failures])

    @report_errors
    def DiffConfig(self, request: provider_pb2.DiffRequest) -> provider_pb2.DiffResponse:
        """Return the changes of the configuration.

        No change replaces the provider: renaming a context must not delete what runs there.
        """
        return _diff_response(
            Changes(list(differences(decode_struct(request.old_inputs), decode_struct(request.news))))
        )

    @report_errors
    def Configure(self, request: provider_pb2.ConfigureRequest) -> provider_pb2.ConfigureResponse:
        """Keep the configuration. The cluster is contacted when it is first needed."""
        self._session = Session(config.ClusterConfig.parse(decode_struct(request.args)))
        return provider_pb2.ConfigureResponse(supportsPreview=True, acceptSecrets=True)

    @report_errors
    def Check(self, request: provider_pb2.CheckRequest) -> provider_pb2.CheckResponse:
        """Return the mistakes in the manifests' apiVersion, kind and name. The API server judges the rest later."""
        news = decode_struct(request.news)
        if request.type in occupants.LISTS:
            return _check_response(
                request, occupants.find_naming_mistakes(news) if request.type == occupants.TOKEN else []
            )
        failures = objects.find_naming_mistakes(news, request.type)
        if request.type == OBJECTS and not failures:
            self._set_members |= {Reference.from_manifest(each) for each in news.values()}
        return _check_response(request, failures)

    @report_errors
    def Diff(self, request: provider_pb2.DiffRequest) -> provider_pb2.DiffResponse:
        """Return the differences between old and new inputs, path by path, and which of them need a new object."""
        old, new = decode_struct(request.old_inputs), decode_struct(request.news)
        if request.type == occupants.ARRIVALS and self._arriving:
            return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_SOME)
        if old == new or request.type in occupants.LISTS:
            return _diff_response(Changes(list(differences(old, new))))
        api = self._session.api_if_reached() if self._session else None
        found = objects.changes(api, old, new, request.type)
        for each in found.remade:
            self.engine.warn(request.urn, each)
        return _diff_response(found)

    @report_errors
    def Create(self, request: provider_pb2.CreateRequest) -> provider_pb2.CreateResponse:
        """Create the objects and wait until they are ready. New units are awaited by `Arrivals` instead."""
        if request.type in occupants.LISTS:
            self._carry_out_list(request, {"objects": {}}, decode_struct(request.properties))
            return provider_pb2.CreateResponse(id=occupants.ID, properties=Struct())
        manifests = objects.read_manifests(decode_struct(request.properties), request.type)
        named = objects.outputs(manifests, request.type)
        if request.preview:
            object_set.foresee(self._api(), {}, _fully_known(manifests), adopts=self.cluster.adopts)
            return provider_pb2.CreateResponse(properties=named)
        self._store(request, {}, manifests)
        return provider_pb2.CreateResponse(
            id=objects.resource_id(manifests), properties=named, refresh_before_update=True
        )

    @report_errors
    def Read(self, request: provider_pb2.ReadRequest) -> provider_pb2.ReadResponse:
        """Return the manifests with live values. If all objects are gone, the answer has no id.

        A list of objects that occupy nodes (`occupants.py`) is no object itself, so it is returned as Pulumi sent it.
        Raises InitFailed if an object is not ready, and ProviderError for an import.
        """
        if request.type in occupants.LISTS:
            # The engine takes a resource without properties for deleted.
            return provider_pb2.ReadResponse(id=request.id, properties=Struct(), inputs=request.inputs)
        inputs = decode_struct(request.inputs)
        if not inputs:
            raise ProviderError(
                "Tidemill imports no single object; set adopt: true, and `pulumi up` takes over the plan's"
            )
        found = object_set.read(self._api(), objects.read_manifests(inputs, request.type))
        if not found:
            return provider_pb2.ReadResponse()
        for each in found.values():
            if each.drift_unknown:
                self.engine.warn(request.urn, f"hand edits could not be looked for: {each.drift_unknown}")
        manifests = {key: each.manifest for key, each in found.items()}
        if lacking := [
            f"{Reference.from_manifest(each.manifest)} is not ready: {each.missing}"
            for each in found.values()
            if each.missing
        ]:
            raise InitFailed.from_objects(manifests, request.type, lacking)
        return provider_pb2.ReadResponse(
            id=objects.resource_id(manifests),
            properties=objects.outputs(manifests, request.type),
            inputs=_copy_secret_marks(request, encode_struct(objects.build_inputs(manifests, request.type))),
            refresh_before_update=True,
        )

    @report_errors
    def Update(self, request: provider_pb2.UpdateRequest) -> provider_pb2.UpdateResponse:
        """Update the objects and wait until they are ready.

        An update that changes nothing waits too, if the objects were not ready when the last update ended. A preview
        checks and writes nothing.
        """
        old, new = decode_struct(request.old_inputs), decode_struct(request.news)
        if request.type in occupants.LISTS:
            self._carry_out_list(request, old, new)
            return provider_pb2.UpdateResponse(properties=Struct())
        before, manifests = objects.read_manifests(old, request.type), objects.read_manifests(new, request.type)
        named = objects.outputs(manifests, request.type)
        if request.preview:
            object_set.foresee(self._api(), before, _fully_known(manifests), adopts=self.cluster.adopts)
            return provider_pb2.UpdateResponse(properties=named)
        self._roll_out(request, before, manifests)
        return provider_pb2.UpdateResponse(properties=named, refresh_before_update=True)

    @report_errors
    def Delete(self, request: provider_pb2.DeleteRequest) -> empty_pb2.Empty:
        """Delete the objects and wait until they are gone. Objects that replaced them under the same name stay.

        Objects that are now part of a set stay too: in older states each was a resource of its own. A unit that has
        left the plan also stays, if a controller deletes it.
        """
        old = decode_struct(request.old_inputs)
        if request.type in occupants.LISTS:
            self._delete_leftovers(request, old, {"objects": {}})
            return empty_pb2.Empty()
        manifests = objects.read_manifests(old, request.type)
        main = object_set.main_object(manifests)[1]
        is_declared = Reference.from_manifest(main) in self._set_members
        if request.type != OBJECTS and is_declared:
            return empty_pb2.Empty()
        if num_withheld(main) and not is_declared and is_left_to_controller(self._api(), main):
            text = f"{Reference.from_manifest(main)} has left the plan, and stays until the controller deletes it"
            self.engine.warn(request.urn, text)
            return empty_pb2.Empty()
        object_set.delete(self._api(), manifests, self._patience(request), self._made_uids)
        return empty_pb2.Empty()

    @report_errors
    def Cancel(self, request: empty_pb2.Empty) -> empty_pb2.Empty:
        """End every wait for objects."""
        self._cancelled.set()
        return empty_pb2.Empty()

    @property
    def cluster(self) -> config.ClusterConfig:
        """The cluster's configuration, as the engine sent it."""
        assert self._session is not None, "the engine configures a provider before it uses it"
        return self._session.cluster

    def _api(self) -> Api:
        assert self._session is not None, "the engine configures a provider before it uses it"
        return self._session.api()

    def _carry_out_list(self, request: Any, old: dict[str, Any], listed: dict[str, Any]) -> None:
        """Delete objects that have left a list of `occupants.py` or, for `Arrivals`, wait for new ones.

        A preview does nothing. Raises InitFailed if a new object does not become ready.
        """
        if request.preview:
            return
        if request.type == occupants.TOKEN:
            self._new_references |= occupants.find_new(old, listed)
            gone = occupants.find_departed(old, listed)
            if listed.get("controller"):
                gone = [each for each in gone if not is_left_to_controller(self._api(), each)]
            if gone:
                lifecycle.delete_all(self._api(), gone, self._patience(request))
            self._delete_leftovers(request, old, listed)
            return
        try:
            waiting.await_all(self._api(), self._arriving, self._patience(request))
        except NotReadyError as error:
            raise InitFailed(occupants.ID, encode_struct(listed), Struct(), error.reasons) from error

    def _delete_leftovers(self, request: Any, old: dict[str, Any], listed: dict[str, Any]) -> None:
        """If a plan loses its controller, delete what that controller has not deleted yet.

        `old` and `listed` are the plan's list of occupants before and after the change.
        """
        if old.get("controller") and not listed.get("controller"):
            unit = next(iter(old["objects"].values()))
            for found in list_leftovers(self._api(), unit, listed["objects"].keys()):
                lifecycle.delete_all(self._api(), found, self._patience(request))

    def _roll_out(self, request: Any, old: Manifests, new: Manifests) -> None:
        """Store the changed objects of a resource.

        If its phase is updated one unit at a time, wait for the unit's turn. If the unit does not become ready then,
        restore its objects and raise ProviderError.
        """
        phase, unit = rolled_phase(old, new), object_set.main_object(new)[1]["metadata"]["name"]
        if phase is None:
            self._store(request, old, new)
            return
        with self._rollout.turn(phase, unit, self._patience(request).report):
            others = set(self._made_uids)
            try:
                self._store(request, old, new)
            except InitFailed as error:
                self._rollout.fail(unit)
                self._undo(request, old, new, others)
                raise ProviderError(f"{error}; {unit} was restored, and is ready") from error

    def _undo(self, request: Any, old: Manifests, new: Manifests, others: set[str]) -> None:
        """Restore the objects of `old`, and delete the objects that the failed change to `new` has added.

        Objects whose uids are in `others`, made earlier in this run, are kept. Raises InitFailed if the restored
        objects do not become ready.
        """
        patience = Patience(DEFAULT_TIMEOUT_S, self._cancelled, functools.partial(self.engine.progress, request.urn))
        try:
            object_set.store(self._api(), new, old, patience, lambda *_: None, kept_uids=others)
        except PartlyStoredError as error:
            raise InitFailed.from_objects(error.existing, request.type, error.reasons) from error

    def _store(self, request: Any, old: Manifests, new: Manifests) -> None:
        """Store a resource and wait until it is ready, unless it is a unit that `Arrivals` awaits.

        Raises InitFailed if some of its objects were stored and not all are ready.
        """
        adopted = Counter[str]()  # objects by who managed them
        unawaited = self._new_references | {
            Reference.from_manifest(each) for each in new.values() if num_withheld(each)
        }

        def on_stored(reference: Reference, stored: StoredObject) -> None:
            self._made_uids.add(stored.uid)
            if reference in unawaited and not stored.is_withheld:
                self._arriving[reference] = stored.uid
            for each in stored.adopted_from:
                adopted[each] += 1
            if stored.is_off:
                text = f"{reference} is scaled to 0 and serves nothing until somebody scales it"
                self.engine.warn(request.urn, text)
            if stored.is_withheld:
                self.engine.warn(
                    request.urn, f"{reference} keeps its pods and waits for its turn, which the controller gives"
                )

        try:
            object_set.store(
                self._api(),
                old,
                new,
                self._patience(request),
                on_stored,
                skip_waiting=unawaited,
                kept_uids=self._made_uids,
                adopts=self.cluster.adopts,
            )
        except PartlyStoredError as error:
            raise InitFailed.from_objects(error.existing, request.type, error.reasons) from error
        finally:
            for manager, number in adopted.items():
                text = f"{counted(number, 'object')} taken over from {manager}, which must not apply the plan any more"
                self.engine.warn(request.urn, text)

    def _patience(self, request: Any) -> Patience:
        report = functools.partial(self.engine.progress, request.urn)
        return Patience(request.timeout or DEFAULT_TIMEOUT_S, self._cancelled, report)


def _fully_known(manifests: Manifests) -> dict[str, Manifest]:
    """Return the manifests without those that have a value not known at preview."""
    return {key: each for key, each in manifests.items() if not has_unknown(each)}


def _copy_secret_marks(request: Any, inputs: Struct) -> Struct:
    """Return `inputs`, with every value marked as secret that is secret in the request's inputs."""
    given = [getattr(request, each) for each in INPUTS if each in request.DESCRIPTOR.fields_by_name]
    return functools.reduce(mark_secrets, given, inputs)


def _check_response(request: provider_pb2.CheckRequest, failures: list[tuple[str, str]]) -> provider_pb2.CheckResponse:
    return provider_pb2.CheckResponse(
        inputs=request.news,
        failures=[provider_pb2.CheckFailure(property=key, reason=reason) for key, reason in failures],
    )


def _diff_response(found: Changes) -> provider_pb2.DiffResponse:
    if not found.changed:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME,
        diffs=sorted({str(each.path[0]) for each in found.changed}),
        replaces=sorted({str(each.path[0]) for each in found.replacing}),
        detailedDiff={
            path_text(each.path): provider_pb2.PropertyDiff(
                kind=KINDS[each.kind][each in found.replacing], inputDiff=True
            )
            for each in found.changed
        },
        hasDetailedDiff=True,
        deleteBeforeReplace=found.old_first,
    )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str, *details: Message) -> NoReturn:
    """End a call with a status code and a text; gRPC sends the `details` in a trailer."""
    status = status_pb2.Status(code=code.value[0], message=text)
    for each in details:
        status.details.add().Pack(each)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)
    raise AssertionError("abort raises")

"""Our provider with its component `tidemill:Deployment`, for programs in any of Pulumi's languages.

    program (Python, TypeScript, Go, YAML) -> engine -- Construct --> a plan's resources, declared to the same engine

The engine calls `Construct` with the component's inputs, and the SDK declares in this process what the component of
our own program declares in that one. `schema.json` describes the component to YAML and to generated SDKs; the kinds of
single objects are the cluster's, so no schema has them.
"""
# ruff: noqa: N802  the methods' names are the protocol's

import asyncio
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
from google.protobuf.struct_pb2 import Struct
from pulumi.provider import ConstructResult
from pulumi.provider import Provider as Components
from pulumi.provider.server import ProviderServicer
from pulumi.runtime.proto import provider_pb2

from planner.problems.errors import TidemillError
from stacks.kube.errors import ProviderError
from stacks.program import TOKEN
from stacks.provider.config import ClusterConfig
from stacks.provider.server import serve
from stacks.provider.servicer import Servicer, report_errors
from stacks.provider.wire import UNKNOWN, decode_struct, has_secret, has_unknown

if TYPE_CHECKING:
    from stacks.program.source import Source

__all__ = ["Plugin", "main"]

SCHEMA = Path(__file__).with_name("schema.json")
NOT_PLANNED = "what is deployed is not known before `up`, so this preview neither plans it nor shows its objects"


def main() -> None:
    """Serve the provider until Pulumi's engine ends it."""
    serve(Plugin)


class Plugin(Servicer):
    """The provider of single objects, with the component that declares a whole plan."""

    @report_errors
    def GetSchema(self, request: provider_pb2.GetSchemaRequest) -> provider_pb2.GetSchemaResponse:
        """Return the schema of the component and of the provider's configuration."""
        return provider_pb2.GetSchemaResponse(schema=json.dumps(_schema() | {"version": version("tidemill")}))

    @report_errors
    def Construct(self, request: provider_pb2.ConstructRequest) -> provider_pb2.ConstructResponse:
        """Declare the resources of a component, and wait until each is created.

        The SDK keeps its state of a program in context variables, and each request's thread has variables of its own.
        Several components of a program are thus created side by side.
        """
        source = _read_source(request.type, request.inputs)
        sdk = ProviderServicer(_Components(source, self.cluster), [], self.engine.address)
        return asyncio.run(sdk.Construct(request, None))


class _Components(Components):
    """The SDK's provider of components, for one call of `Construct`."""

    def __init__(self, source: "Source | None", cluster: ClusterConfig) -> None:
        super().__init__(None)
        self._source, self._cluster = source, cluster

    def construct(
        self, name: str, resource_type: str, inputs: Mapping[str, Any], options: pulumi.ResourceOptions | None = None
    ) -> ConstructResult:
        """Declare the component and return its outputs.

        While the component's source is unknown, nothing is declared and the outputs are unknown.
        """
        from stacks.program.deployment import Deployment

        if self._source is None:
            empty = pulumi.ComponentResource(resource_type, name, opts=options)
            pulumi.log.warn(NOT_PLANNED, empty)
            return ConstructResult(empty.urn, dict.fromkeys(_component()["properties"], UNKNOWN))
        of_provider = {
            "kubeconfig": self._cluster.kubeconfig,
            "context": self._cluster.context,
            "adopt": self._cluster.adopts,
        }
        cluster = {key: inputs.get(key, otherwise or None) for key, otherwise in of_provider.items()}
        deployment = Deployment(name, self._source, **cluster, opts=options)
        return ConstructResult(deployment.urn, deployment.outputs)


def _schema() -> dict[str, Any]:
    return dict(json.loads(SCHEMA.read_text()))


def _component() -> dict[str, Any]:
    return dict(_schema()["resources"][TOKEN])


def _read_source(token: str, struct: Struct) -> "Source | None":
    """Return the source in a component's inputs, already planned; None if some of the inputs are not known yet.

    Raises ProviderError if the inputs are wrong or cannot be planned.
    """
    from stacks.program.source import FIELDS, Source  # the planner, which a provider of objects does not need

    inputs, known = decode_struct(struct), _component()["inputProperties"]
    if token != TOKEN:
        raise ProviderError(f"tidemill has no component {token}; it has {TOKEN}")
    if unknown := sorted(inputs.keys() - known.keys()):
        raise ProviderError(f"{', '.join(unknown)}: no input of tidemill:Deployment, which has {', '.join(known)}")
    given = {key: inputs[key] for key in FIELDS if key in inputs}
    if has_unknown(given):
        return None
    try:
        source = Source.parse(given, is_secret=any(has_secret(struct.fields[key]) for key in given))
        assert source.objects
    except TidemillError as error:
        raise ProviderError(str(error)) from None
    return source


if __name__ == "__main__":
    main()

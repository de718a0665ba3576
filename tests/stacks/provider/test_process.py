"""The provider as a process: what an engine hears from it, without a cluster."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderStub

from stacks.provider.wire import UNKNOWN, decode_struct, encode_struct

pytestmark = pytest.mark.slow

PROVIDER = [sys.executable, "-m", "stacks.program.plugin", "127.0.0.1:1"]
ROOT = Path(__file__).parents[3]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}, "data": {"x": "1"}}

KUBECONFIG = """
current-context: one
contexts: [{name: one, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: QUFB}}]
users: [{name: u, user: {client-certificate-data: QUFB, client-key-data: QUJD}}]
"""


@pytest.fixture(scope="module")
def provider():
    """(process, port) of a running one."""
    environment = os.environ | {"KUBECONFIG": "/nonexistent"}
    process = subprocess.Popen(PROVIDER, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def stub(provider):
    """What the engine calls it by."""
    with grpc.insecure_channel(f"127.0.0.1:{provider[1]}") as channel:
        yield ResourceProviderStub(channel)


def check(stub, manifest, token="tidemill:core/v1:ConfigMap"):
    request = pb.CheckRequest(urn="u", type=token, news=encode_struct(manifest))
    return [(each.property, each.reason) for each in stub.Check(request).failures]


def diff(stub, old, new):
    answer = stub.Diff(pb.DiffRequest(old_inputs=encode_struct(old), news=encode_struct(new)))
    kinds = {path: pb.PropertyDiff.Kind.Name(each.kind) for path, each in answer.detailedDiff.items()}
    return answer, kinds


def test_it_listens_on_the_loopback_address_only(provider):
    """127.0.0.2 would answer if it were bound to all addresses."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", provider[1]), timeout=5)


def test_a_manifest_that_names_no_object_is_refused(stub):
    """With what it lacks."""
    assert check(stub, CONFIG_MAP) == []
    assert check(stub, {"kind": "ConfigMap", "metadata": {}}) == [
        ("apiVersion", "apiVersion is missing; a manifest needs it"),
        ("metadata", "metadata.name is missing; a manifest needs it"),
    ]
    assert check(stub, CONFIG_MAP, token="tidemill:core/v1:Secret") == [
        ("kind", "v1 ConfigMap is not of the resource's type tidemill:core/v1:Secret")
    ]


def test_equal_inputs_are_no_change(stub):
    """Nothing to do, said outright."""
    answer, kinds = diff(stub, CONFIG_MAP, CONFIG_MAP)

    assert (answer.changes, kinds) == (pb.DiffResponse.DIFF_NONE, {})


def test_a_change_is_named_by_its_path(stub):
    """Even where no cluster can be asked."""
    answer, kinds = diff(stub, CONFIG_MAP, CONFIG_MAP | {"data": {"x": "2", "y": UNKNOWN}})

    assert kinds == {"data.x": "UPDATE", "data.y": "ADD"}
    assert (answer.changes, list(answer.diffs), list(answer.replaces)) == (pb.DiffResponse.DIFF_SOME, ["data"], [])


@pytest.mark.parametrize("key", ["name", "namespace"])
def test_another_name_is_another_object(stub, key):
    """Made before the old one goes: they do not clash."""
    answer, kinds = diff(stub, CONFIG_MAP, CONFIG_MAP | {"metadata": CONFIG_MAP["metadata"] | {key: "other"}})

    assert kinds == {f"metadata.{key}": "UPDATE_REPLACE"}
    assert (list(answer.replaces), answer.deleteBeforeReplace) == (["metadata"], False)


@pytest.mark.parametrize(("version", "kind"), [("v2", "UPDATE"), ("apps/v1", "UPDATE_REPLACE")])
def test_another_version_is_the_same_object_and_another_group_is_not(stub, version, kind):
    """A group's versions show the same object."""
    _, kinds = diff(stub, CONFIG_MAP, CONFIG_MAP | {"apiVersion": version})

    assert kinds == {"apiVersion": kind}


def test_another_context_never_replaces_anything(stub):
    """A context that is renamed must not delete what runs in it."""
    request = pb.DiffRequest(old_inputs=encode_struct({"context": "a"}), news=encode_struct({"context": "b"}))

    answer = stub.DiffConfig(request)

    assert (answer.changes, list(answer.replaces)) == (pb.DiffResponse.DIFF_SOME, [])


@pytest.mark.parametrize(
    ("values", "key", "reason"),
    [
        ({"cluster": "x"}, "cluster", "is unknown; the keys are adopt, context, kinds, kubeconfig"),
        ({"kubeconfig": 3}, "kubeconfig", "must be the content or the path of a kubeconfig"),
        ({"context": 3}, "context", "must be the name of a context of the kubeconfig"),
        ({"adopt": "maybe"}, "adopt", "must be true or false"),
        ({"kinds": "Deployment"}, "kinds", 'must be a list such as ["apps/v1/Deployment", "v1/Service"]'),
        ({"kinds": ["Deployment"]}, "kinds", 'must be a list such as ["apps/v1/Deployment", "v1/Service"]'),
        ({"kinds": "[nonsense"}, "kinds", 'must be a list such as ["apps/v1/Deployment", "v1/Service"]'),
    ],
)
def test_a_wrong_configuration_names_its_key(stub, values, key, reason):
    """Before any cluster is looked for."""
    (failure,) = stub.CheckConfig(pb.CheckRequest(urn="u", news=encode_struct(values))).failures

    assert (failure.property, failure.reason) == (key, reason)


def test_a_configuration_that_is_not_known_yet_is_not_judged(stub):
    """At a preview, when the context comes from another resource."""
    answer = stub.CheckConfig(pb.CheckRequest(urn="u", news=encode_struct({"context": UNKNOWN})))

    assert list(answer.failures) == []
    assert decode_struct(answer.inputs) == {"context": UNKNOWN}


def test_a_provider_that_needs_no_kind_needs_no_cluster(stub):
    """Pulumi makes one for each program that only has components, which bring their own cluster along."""
    checks = [
        stub.CheckConfig(pb.CheckRequest(urn="u", news=encode_struct(each))) for each in ({}, {"kinds": ["v1/Pod"]})
    ]

    assert [len(each.failures) for each in checks] == [0, 1]


def test_a_mistake_of_ours_is_one_line(stub):
    """Here it is used before it is configured, which no engine does."""
    with pytest.raises(grpc.RpcError) as error:
        stub.Delete(pb.DeleteRequest(id="x", old_inputs=encode_struct(CONFIG_MAP)))

    assert error.value.code() == grpc.StatusCode.INTERNAL
    assert error.value.details() == (
        "this is a bug in tidemill (AssertionError: the engine configures a provider before it uses it); "
        "`--debug` shows where"
    )


def test_it_says_who_it_is(stub):
    """Version and schema, for tools that ask."""
    assert stub.GetPluginInfo(empty_pb2.Empty()).version == version("tidemill")
    assert '"name": "tidemill"' in stub.GetSchema(pb.GetSchemaRequest()).schema


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_and_silently_when_told(number):
    """As the engine does at the end of each command; without a traceback."""
    process = subprocess.Popen(PROVIDER, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()

    process.send_signal(number)

    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


def test_it_leaves_no_key_behind(tmp_path):
    """The Kubernetes client writes the kubeconfig's keys into temporary files."""
    process = subprocess.Popen(
        PROVIDER, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    values = {"kubeconfig": KUBECONFIG, "kinds": ["v1/Namespace"]}
    with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
        ResourceProviderStub(channel).CheckConfig(pb.CheckRequest(urn="u", news=encode_struct(values)))
    written = [each.name for each in tmp_path.rglob("*") if each.is_file()]

    process.terminate()
    process.communicate(timeout=120)

    assert len(written) > 0
    assert list(tmp_path.iterdir()) == []


def test_it_ends_with_its_engine():
    """Also one that was killed and could not tell it."""
    script = f"import subprocess, time; p = subprocess.Popen({PROVIDER!r}); print(p.pid, flush=True); time.sleep(600)"
    engine = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = int(engine.stdout.readline())
    engine.stdout.readline()  # the provider's port: it is up

    engine.kill()
    engine.wait()

    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)

"""What the provider does for Pulumi's requests, against a fake API server."""

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from stacks.kube.manifest import type_token
from stacks.provider import session
from stacks.provider.servicer import Servicer
from stacks.provider.wire import to_plain, to_struct
from tests.stacks.kube.fake_api import running_fake_api

LABELS = {"tidemill.dev/plan": "demo"}
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "demo", "labels": LABELS},
    "data": {"a": "1"},
}
MAP_PATH = "/api/v1/namespaces/demo/configmaps/settings"
GROUPS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/demo/leaderworkersets"


class SilentEngine:
    """Pulumi's engine, which keeps what it is warned of."""

    def __init__(self):
        self.warnings = []

    def warn(self, urn, text):
        self.warnings.append(text)

    def progress(self, urn, text):
        pass


@pytest.fixture
def fake(monkeypatch):
    """The server that every context leads to."""
    with running_fake_api() as (fake, api):
        monkeypatch.setattr(session, "connect", lambda context: api)
        yield fake


@pytest.fixture
def servicer(fake):
    """A configured provider."""
    made = Servicer(SilentEngine())
    made.Configure(pb.ConfigureRequest(), None)
    return made


def create(servicer, manifest):
    request = pb.CreateRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), properties=to_struct(manifest)
    )
    return servicer.Create(request, None)


def delete(servicer, manifest):
    request = pb.DeleteRequest(
        type=type_token(manifest["apiVersion"], manifest["kind"]), old_inputs=to_struct(manifest), timeout=30
    )
    return servicer.Delete(request, None)


def group(unit):
    metadata = {"name": unit, "namespace": "demo", "labels": LABELS}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": metadata}


def test_a_replacement_under_the_same_name_keeps_the_new_object(fake, servicer):
    """Pulumi makes it, which takes up the old one, and then deletes the old one, which is the new one by now."""
    fake.store(MAP_PATH, CONFIG_MAP)

    create(servicer, CONFIG_MAP)
    delete(servicer, CONFIG_MAP)

    assert MAP_PATH in fake.objects


def test_what_another_run_made_is_deleted(fake, servicer):
    """A `destroy` has made nothing itself."""
    fake.store(MAP_PATH, CONFIG_MAP)

    delete(servicer, CONFIG_MAP)

    assert fake.objects == {}


def test_a_unit_scaled_to_nothing_is_warned_of(fake, servicer):
    """`up` has nothing to wait for, and must not look as if the unit served."""
    unit = group("decode-0") | {"spec": {}}
    fake.store(f"{GROUPS}/decode-0", unit)
    fake.after["PATCH"] = [lambda fake: fake.objects[f"{GROUPS}/decode-0"]["spec"].update(replicas=0)]

    answer = create(servicer, unit)

    assert to_plain(answer.properties) == unit
    assert servicer.engine.warnings == [
        "LeaderWorkerSet demo/decode-0 is scaled to 0 and serves nothing until somebody scales it"
    ]

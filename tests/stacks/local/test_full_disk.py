"""A disk that is full while a deployment runs: nothing ends by it, and the record is true once there is room."""

import datetime
import errno

import pytest

from stacks.local import supervisor as module
from stacks.local.certificates import RENEWED_AFTER, now
from stacks.local.layout import GatewayProcess, Identity, Layout, NodeProcess
from stacks.local.record import GatewayRecord, Record, RunFolder

IDENTITY = "spiffe://tidemill.dev/ns/tidemill/deployment/demo/gateway"


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A supervisor of a gateway that answers nothing, and its folder."""
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    folder = RunFolder(tmp_path)
    identity = Identity(IDENTITY, "server", folder.certificates / "gateway")
    layout = Layout((GatewayProcess(NodeProcess("gateway", None, ("true",)), "127.0.0.1", 1),), (), (identity,), 1.0)
    return module._Supervisor(
        folder,
        layout,
        Record("demo", "sha256:0", (GatewayRecord("gateway", "http://127.0.0.1:1", "ready"),), "demo", ()),
    ), folder


def full(*_):
    """What a write says there."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_record_that_cannot_be_written_is_written_later(deployment, monkeypatch):
    """The supervisor goes on with what it knows."""
    supervisor, folder = deployment
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", full)
        supervisor._watch()
        assert folder.read().stages == {}
    supervisor._watch()

    assert folder.read().stages.keys() == {
        "loading",
        "joining",
        "ready",
    }  # its gateway is ready, and there are no units


def test_certificates_that_cannot_be_renewed_are_renewed_later(deployment, monkeypatch):
    """Those that are there are good for hours."""
    supervisor, folder = deployment
    path = folder.certificates / "gateway" / "tls.crt"
    before = path.read_bytes()
    monkeypatch.setattr(module, "now", lambda: now() + RENEWED_AFTER + datetime.timedelta(seconds=1))
    with monkeypatch.context() as patch:
        patch.setattr("stacks.local.certificates._write", full)
        supervisor._watch()
        assert path.read_bytes() == before
    supervisor._watch()

    assert path.read_bytes() != before

"""A full disk: a start ends with that reason, and what runs already goes on, with a true record once there is room."""

import datetime
import errno
import subprocess
from dataclasses import replace

import pytest

from stacks.local import supervisor as module
from stacks.local.certificates import RENEWED_AFTER, now
from stacks.local.deployment import CRASHED, follow
from stacks.local.errors import LocalError
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
    """Once everything was ready, the supervisor goes on with what it knows."""
    supervisor, folder = deployment
    supervisor._watch()  # its gateway is ready, and there are no units
    supervisor._record = replace(supervisor._record, stages={**supervisor._record.stages, "gateway": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", full)
        supervisor._watch()
        assert folder.read().stages.keys() == {"loading", "joining", "ready"}
        assert not supervisor._is_over()
    supervisor._watch()

    assert folder.read().stages.keys() == {"loading", "joining", "ready", "gateway"}


def test_a_start_that_cannot_be_recorded_ends(deployment, monkeypatch):
    """`up` waits for a record that says so: the supervisor ends with the system's number for a full disk."""
    supervisor, folder = deployment
    monkeypatch.setattr(RunFolder, "write", full)

    assert supervisor.run() == errno.ENOSPC
    assert module.supervise(folder, supervisor._layout, supervisor._record, pytest.fail) == errno.ENOSPC


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (f"exit {errno.ENOSPC}", r"No space left on device.*R110"),
        (f"exit {CRASHED}", r"its supervisor failed.*R104"),
        ("kill -KILL $$", r"its supervisor was killed by SIGKILL.*R104"),
    ],
)
def test_up_says_why_its_supervisor_has_ended(end, said, tmp_path):
    """Its exit status is all that it can leave where nothing can be written."""
    with subprocess.Popen(["sh", "-c", end]) as supervisor, pytest.raises(LocalError, match=said):
        list(follow(RunFolder(tmp_path, supervisor.pid)))


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

"""What the record says while a deployment ends."""

from dataclasses import replace

from stacks.local import supervisor as module
from stacks.local.layout import GatewayProcess, Layout, NodeProcess
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder


def test_units_drain_until_the_gateways_answers_have_ended(tmp_path, monkeypatch):
    """`status` calls no unit ready that is told to end: answers may take as long as the drain. Off stays off."""
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    units = tuple(UnitRecord(f"demo-{index}", "mixed", state, 1) for index, state in enumerate(("ready", "off")))
    layout = Layout((GatewayProcess(NodeProcess("gateway", None, ("true",)), "127.0.0.1", 1),), (), (), 1.0)
    record = Record("demo", "sha256:0", (GatewayRecord("gateway", "http://127.0.0.1:1"),), "demo", units)
    supervisor, told = module._Supervisor(RunFolder(tmp_path), layout, replace(record, drain_s=1.0)), []
    monkeypatch.setattr(module._Supervisor, "_end", lambda self, *_: told.append(self._folder.read()))

    supervisor._stop()

    assert [unit.state for unit in told[0].units] == ["draining", "off"]
    assert told[0].is_stopping

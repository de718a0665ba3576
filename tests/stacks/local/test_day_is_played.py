"""A day of two mixed units of one rank, played for real under streams."""

import pytest

from tests.benchmarks.played_day import played, undisturbed

WINDOWS = [{"at": "00:00", "mixed_units": 1}, {"at": "21:00", "mixed_units": 2}, {"at": "22:30", "mixed_units": 1}]
MIXED = {"ep_size": 1, "precision": "fp32", "max_requests": 8, "max_batch_tokens": 64, "max_request_tokens": 256}
CLUSTER = {"gpu": "cpu", "nodes": 2, "gpus_per_node": 1}


@pytest.mark.whole
def test_nobody_sees_that_a_unit_comes_and_goes(demo, tidemill, write_spec):
    """It starts, drains and stops when it is due, and every answer has the text of a day without it.

    On a slow machine it may be ready late, or never: then `up` says so.
    """
    schedule = {"windows": WINDOWS, "warm_up": "30min", "drain": "15min"}
    changed = {"mixed": MIXED, "cluster": CLUSTER, "schedule": schedule, "kubernetes": {"drain": "3min"}}
    spec = write_spec(prefill=None, decode=None, **changed)
    status, day, streams, said = played(tidemill, spec, "40s", undisturbed(demo.host))

    assert streams.wrong == []
    assert len(streams.answers) > 0
    assert [(act.kind, act.unit) for act in day.acts] == [
        (kind, "demo-mixed-1") for kind in ("start", "serve", "drain", "stop")
    ]
    assert day.is_over
    assert [act.kind for act in day.acts if act.done_s is None] in ([], ["serve"])
    assert "demo-mixed-1 drains, due at 22:30:00" in said
    assert status == (1 if day.num_late else 0), said

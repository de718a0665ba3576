"""A trace is a file that a viewer opens, and without one nothing is recorded."""

import json
from pathlib import Path

import pytest

from runtime import trace
from runtime.errors import RuntimeFailure, UsageError


def test_spans_are_written_with_their_track_and_micro_batch(tmp_path):
    """Spans have their track, micro-batch and times in microseconds, each inside the one that holds it."""
    with trace.recording(tmp_path / "trace.json", rank=3):
        trace.set_micro_batch(1)
        with trace.span("dispatch issue", layer=2):
            exchange = trace.record_link(lambda: "rows")
        assert exchange() == "rows"
    events = json.loads((tmp_path / "trace.json").read_text())
    spans = {event["name"]: event for event in events if event["ph"] == "X"}

    assert {event["pid"] for event in events} == {3}
    assert {name: span["tid"] for name, span in spans.items()} == {"dispatch issue": 0, "dispatch": 1}
    assert all(span["args"] == {"layer": 2, "micro_batch": 1} for span in spans.values())
    assert spans["dispatch issue"]["ts"] + spans["dispatch issue"]["dur"] <= spans["dispatch"]["ts"]


def test_nothing_is_recorded_unless_asked(tmp_path):
    """Spans and exchanges pass through unrecorded before and after a recording."""
    with trace.recording(None, rank=0), trace.span("gate"):
        pass
    with trace.recording(tmp_path / "trace.json", rank=0):
        pass
    with trace.span("gate"):
        pass

    assert [event["ph"] for event in json.loads((tmp_path / "trace.json").read_text())] == ["M"] * 4
    assert trace.record_link(len) is len


def test_a_file_that_is_cut_off_needs_its_bracket_only(tmp_path):
    """A file that is cut off lacks only its bracket, because every line is a whole event."""
    path = tmp_path / "trace.json"
    with trace.recording(path, rank=0):
        with trace.span("gate"):
            pass
        cut_off = path.read_text()

    assert [event["name"] for event in json.loads(cut_off.removesuffix(",\n") + "]")][-1] == "gate"


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    """A path that cannot be written is one sentence."""
    path = tmp_path / "missing" / "trace.json"

    with pytest.raises(UsageError, match=r"cannot write the trace .* No such file"), trace.recording(path, rank=0):
        pass


def test_a_full_disk_ends_the_record_and_nothing_else(capsys):
    """A full disk ends the trace with one line, and the rank goes on."""
    with trace.recording(Path("/dev/full"), rank=0):
        for _ in range(3):
            with trace.span("gate"):
                pass
        done = trace.record_link(lambda: "rows")()

    assert done == "rows"
    assert capsys.readouterr().err == "tidemill: the trace /dev/full ends early: No space left on device\n"


def test_a_part_that_ended_early_is_said(tmp_path):
    """A part that ended early is refused, because it would read as one in which nothing happened."""
    part = tmp_path / "0.json"
    part.write_text('[\n{"name": "process_name", "ph": "M"},\n')

    with pytest.raises(RuntimeFailure, match=r"no trace .*whole\.json: a rank could not write its part"):
        trace.join([part], tmp_path / "whole.json")


def test_generate_joins_the_ranks(generate, tmp_path):
    """One file shows both ranks in every MoE layer, on one clock."""
    generate([[1, 2, 3], [4, 5]], "--max-tokens", 2, "--ep", 2, "--trace", tmp_path / "trace.json")
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    first, second = ([span for span in spans if span["pid"] == rank] for rank in (0, 1))

    for own in (first, second):
        assert {span["args"]["layer"] for span in own if span["name"] == "dispatch"} == {1, 2, 3, 4}
    assert max(span["ts"] for span in first) > min(span["ts"] for span in second)
    assert max(span["ts"] for span in second) > min(span["ts"] for span in first)

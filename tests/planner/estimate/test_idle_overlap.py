"""An overlap that costs more than it hides is a warning, with the faster value."""

import json

import pytest

from planner.compiler import compile_plan
from planner.problems.fix import apply_change
from planner.rules.check import check_spec
from tests.planner.layout.test_memory import PAIR

pytestmark = pytest.mark.slow


@pytest.fixture
def warned(tmp_path):
    """A function: the warnings about the overlaps of a spec."""

    def found(data):
        (tmp_path / "spec.yaml").write_text(json.dumps(data))
        warnings = compile_plan(check_spec(tmp_path / "spec.yaml")).warnings
        return [each for each in warnings if each.rule.startswith("W137")]

    return found


def decoding(requests, overlap="five_stage"):
    return PAIR | {"decode": PAIR["decode"] | {"overlap": overlap, "max_requests": requests}}


def test_a_small_batch_is_faster_whole(warned):
    """The fix is what is faster, and nothing is said of it."""
    (warning,) = warned(decoding(16))

    assert (warning.path, warning.value) == ("decode.overlap", "five_stage")
    assert warned(apply_change(decoding(16), warning.changes[0])) == []


def test_a_batch_that_hides_its_exchanges_is_left_alone(warned):
    """Halves of 128 requests are large enough, as SGLang measured."""
    assert warned(decoding(128)) == []

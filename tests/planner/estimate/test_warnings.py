"""Where a warning is not given, though something like it is elsewhere."""

import json

import pytest

from planner.compiler import check_fit
from planner.problems.fix import applied
from planner.spec.check import check_spec
from tests.planner.layout.test_memory import PAIR


@pytest.fixture
def rules_of(spec_file):
    """Function from changes of the pair to the rules that it is warned by."""

    def rules(change):
        path = spec_file(json.dumps(applied(PAIR, change)), "warned.yaml")
        return {warning.rule[:4] for warning in check_fit(check_spec(path)).warnings}

    return rules


def test_no_overlap_is_offered_that_the_engine_lacks(rules_of):
    """S747 takes decode on vLLM to dual_batch, and W102 must not take it back."""
    assert "W102" in rules_of({"decode.overlap": "dual_batch"})
    assert "W102" not in rules_of({"engine": "vllm", "decode.overlap": "dual_batch"})


@pytest.mark.parametrize("image", ["tidemill-runtime:0.1.0", "mirror.example.com/llm:1", "a/vllm-openai@sha256:0"])
def test_an_image_may_be_called_after_no_engine(image, rules_of):
    """The default stands for the engine's own image, and a name that says no engine may hold any."""
    assert "W110" not in rules_of({"engine": "vllm", "kubernetes.image": image})

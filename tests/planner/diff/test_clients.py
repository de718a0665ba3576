"""A diff names what callers of the service have to change."""

import pytest

from planner.compiler import compile_plan
from planner.diff.clients import find_client_fields
from planner.diff.diff import compare_plans
from planner.diff.text import diff_text
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "other"}, "name deepseek-r1 -> other"),
        ({"kubernetes.namespace": "other"}, "kubernetes.namespace tidemill -> other"),
        ({"model.name": "other"}, "model.name deepseek-r1 -> other"),
        ({"gateway.port": 9999}, "gateway.port 8000 -> 9999"),
        (
            {"decode.max_request_tokens": 8192, "prefill.max_request_tokens": 8192},
            "max_request_tokens 32,768 -> 8,192",
        ),
        ({"gateway.keys": "chat-keys"}, "gateway.keys"),
    ],
)
def test_fields_that_callers_notice_are_named(change, named):
    """What merely restarts pods is no matter of theirs."""
    spec = check_spec(SPECS / "h800-one-pair.yaml")
    before, after = compile_plan(spec), compile_plan(change_spec(spec, change))

    text = " ".join(diff_text(compare_plans(before, after)).split())

    assert f" clients get errors until they change too: {named} " in text
    assert list(find_client_fields(before, before)) == []

"""Values that a spec leaves to the planner."""

import warnings

from planner.spec.schema import Spec
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of


def test_a_spec_with_auto_is_written_unchanged():
    """The word `auto` is a valid value of the field, and Pydantic writes it without a warning."""
    data = data_of(SPEC) | {"schedule": "auto"}
    data["prefill"] |= {"ep_size": "auto", "max_requests": "auto"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = Spec.model_validate(data).model_dump(mode="json")

    assert (
        written["schedule"]["windows"] == written["prefill"]["ep_size"] == written["prefill"]["max_requests"] == "auto"
    )
    assert written["decode"]["ep_size"] == data["decode"]["ep_size"]

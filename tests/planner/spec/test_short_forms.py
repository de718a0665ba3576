"""Sections in short form, and keys that look like the tags by which Pydantic tells forms apart."""

import pytest

from planner.spec.fields import check_fields
from planner.spec.section import UNION_TAGS
from planner.spec.short_forms import expand_short_forms
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of

DATA = data_of(SPEC) | {"schedule": "auto"}


def test_a_short_section_is_written_in_full_for_a_path_into_it_alone():
    """A whole section in its place leaves the short form to be replaced."""
    assert expand_short_forms(DATA, ["schedule.headroom"])["schedule"] == {"windows": "auto"}
    assert expand_short_forms(DATA, ["schedule"])["schedule"] == "auto"


@pytest.mark.parametrize("key", UNION_TAGS)
@pytest.mark.parametrize("section", ["", "model", "prefill"])
def test_a_key_may_look_like_a_tag_of_a_union(key, section):
    """Whoever fills in `<name>` on the wrong side of the colon is told so, wherever it stands."""
    data = DATA | {"model": {"catalog": "deepseek-r1"}}
    data |= {section: data[section] | {key: 1}} if section else {key: 1}
    (finding,) = check_fields(data).findings

    assert (finding.path, finding.rule[:4]) == (f"{section}.{key}".lstrip("."), "S201")

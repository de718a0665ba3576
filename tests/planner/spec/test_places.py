"""Paths that somebody wrote, and whether a value can stand there."""

import pytest

from planner.spec.fields import check_fields
from planner.spec.places import expand_short_forms, explain_no_place
from planner.spec.section import UNION_TAGS
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of

DATA = data_of(SPEC) | {"schedule": "auto"}
LISTED = DATA | {"cluster": {"gpu": "cpu", "nodes": [{"name": "a"}], "gpus_per_node": 2}}
ENV = DATA | {"kubernetes": {"env": {"A": "x", "B": {"secret": "s"}}}}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("schedule.headroom", DATA),
        ("traffic.profile", DATA),
        ("operating_point.decode.requests", DATA),
        ("cluster.nodes.0.rack", LISTED),
        ("kubernetes.env.C", ENV),
        ("kubernetes.env.B.key", ENV),
    ],
)
def test_a_value_can_stand_where_the_spec_has_a_field(path, data):
    """Sections that are not there yet, or written in short, have their fields all the same."""
    assert explain_no_place(path, data) is None


@pytest.mark.parametrize(
    ("path", "data", "reason", "meant"),
    [
        ("name.x", DATA, "name is river, which has no fields", None),
        ("cluster.gpu.memory", DATA, "cluster.gpu is cpu, which has no fields", None),
        ("cluster.nodes.0.rack", DATA, "cluster.nodes is no list here", None),
        ("cluster.nodes.99.rack", LISTED, "cluster.nodes has the items 0 to 0", None),
        ("cluster.nodes.a.rack", LISTED, "cluster.nodes has the items 0 to 0", None),
        ("schedule.windows.0.at", DATA, "schedule.windows is no list here", None),
        ("decode.epsize", DATA, "decode has no epsize", "decode.ep_size"),
        ("headroom", DATA, "the spec has no headroom", "schedule.headroom"),
        ("decode.colour", DATA, "decode has no colour", None),
        ("kubernetes.env.A.b", ENV, "kubernetes.env.A is no mapping", None),
    ],
)
def test_a_path_to_nowhere_says_why(path, data, reason, meant):
    """The reason names what stands there, and a misspelt name comes with ours."""
    found = explain_no_place(path, data)

    assert (found.reason, found.meant) == (reason, meant)


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

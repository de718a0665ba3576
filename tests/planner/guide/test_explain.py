"""What `tidemill explain` says of rules and fields."""

import json
import re

import pytest

from planner.cli import main
from planner.guide.explain import explain, explanation_text
from planner.guide.fields import field_paths
from planner.guide.rules import RETIRED, rules
from planner.rules.rule import LEVELS
from planner.rules.table import rules_at
from planner.spec.unknown_keys import read_table
from tests.docs.rooms_table import ROOT
from tests.planner.spec.spec_schema import all_kinds


def test_every_id_is_explained():
    """Each id that the sources name is explained with its level, its severity and a message."""
    sources = "".join(path.read_text() for room in ("planner", "stacks") for path in (ROOT / room).rglob("*.py"))
    ids = set(re.findall(r'"([SWR]\d{3})\b', sources)) - RETIRED
    told = {each: explanation_text(explain(each)) for each in ids}

    assert [each for each, text in told.items() if not re.search(r"level .*severity .*message ", text, re.S)] == []
    assert len(ids) > 200


def test_every_field_of_the_schema_is_explained():
    """Each path of the JSON Schema is explained with what it takes, and a section with all its fields."""
    paths = {path for path, _ in all_kinds() if path}
    told = {path: explain(path) for path in paths if not path.endswith("[]")}

    assert [
        path for path, each in told.items() if not (each["description"] and each["takes"] and each["example"])
    ] == []
    assert explain("cluster.nodes[]")["fields"].keys() >= {"name", "rack"}
    assert len(told) > 200


def test_every_check_says_what_it_does():
    """The docstring of each check that is no row of a table begins with what it does about a spec."""
    checks = {rule.check for level in LEVELS for rule in rules_at(level) if not rule.about}
    begins = re.compile(r"(Reject|Require|Warn|Report) ")

    assert [each.__name__ for each in checks if not begins.match(each.__doc__ or "")] == []


def test_a_rule_is_explained_as_its_page_has_it():
    """The page of rules shows the very message that `explain` does."""
    page = (ROOT / "docs" / "rules.md").read_text().replace(r"\|", "|")

    assert [each.id for each in rules().values() if each.example not in page] == []
    assert explain("S501")["checks"] == (
        "Reject an EP size that does not divide the physical experts: dispatch kernels need equal slots on all GPUs.",
    )


def test_a_field_is_explained(capsys):
    """A field's JSON has all that its text has."""
    assert main(["explain", "schedule.warm_up", "--format", "json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["default"], told["units"], told["is_required"]) == ("10min", ["ms", "s", "min", "h"], False)
    assert "S763" in told["rules"]
    assert "  unit     ms, s, min, h\n" in explanation_text(told)


def test_rules_of_every_phase_are_found():
    """A rule that has spoken of a field of one phase is found under the same field of the others."""
    assert "S501" in explain("prefill.ep_size")["rules"]
    assert explain("prefill.ep_size")["rules"] == explain("decode.ep_size")["rules"]


def test_names_of_other_tools_are_of_the_field():
    """Names come from the table of other tools, those with advice together with it."""
    told = explain("decode.max_requests")["elsewhere"]

    assert {"max_num_seqs", "max_running_requests"} <= {name for each in told for name in each["names"]}
    assert {each["write"] for each in told} <= {row.write for row in read_table()}
    assert "max_running_requests: write max_requests, as " in explanation_text(explain("decode.max_requests"))


@pytest.mark.parametrize("written", ["cluster.nodes[].rack", "cluster.nodes.0.rack", "cluster.nodes.rack"])
def test_items_may_be_written_in_each_way(written):
    """A path of a message, of the page or of neither leads to the same field."""
    assert explain(written)["field"] == "cluster.nodes[].rack"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("s501", "did you mean S501?"),
        ("decode.ep_sise", "did you mean decode.ep_size?"),
        ("rack_size", "did you mean cluster.rack_size?"),
        ("S110", "the id is retired"),
        ("", "write an id such as S501"),
        ("[]", "write an id such as S501"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(capsys, name, fix):
    """A name that is neither a rule nor a field exits with 2."""
    assert main(["explain", name]) == 2
    assert fix in capsys.readouterr().err


def test_retired_ids_have_no_example():
    """No id that messages had once has come back."""
    assert not RETIRED & rules().keys()
    assert len(field_paths()) > 200

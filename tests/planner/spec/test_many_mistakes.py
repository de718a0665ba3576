"""A file with more mistakes than anybody reads is answered soon, and nothing is wrong that is not told or counted."""

from planner.problems.errors import MAX_LISTED
from planner.spec import unknown_keys
from planner.spec.fields import check_fields
from tests.planner.conftest import SPEC
from tests.planner.spec.wrong_specs import data_of


def test_a_flood_of_unknown_keys_is_told_in_part_and_counted(problems_of):
    """S109 says how many more there are; the other mistakes of the file are told as ever."""
    keys = "".join(f"key_{number}: 1\n" for number in range(MAX_LISTED + 1_000))
    problems = problems_of(SPEC.replace("port: 8000", "port: 9400") + keys)
    (more,) = (each for each in problems if each.rule.startswith("S109"))

    assert (f"the {MAX_LISTED} that are listed" in more.rule, more.reason) == (True, "it has 1,000 more")
    assert len(problems) == MAX_LISTED + 2
    assert "gateway.port" in {each.path for each in problems}


def test_as_many_mistakes_as_are_told_need_no_remark(problems_of):
    """Each of them has its line."""
    problems = problems_of(SPEC + "".join(f"key_{number}: 1\n" for number in range(MAX_LISTED)))

    assert len(problems) == MAX_LISTED
    assert all(each.line > 1 for each in problems)


def test_wrong_nodes_beyond_what_is_told_reach_no_rule(problems_of):
    """A rule about names meets none that is no text."""
    nodes = "".join(f"    - {{name: {number}}}\n" for number in range(MAX_LISTED + 100))
    problems = problems_of(SPEC.replace("  nodes: 3\n", f"  nodes:\n{nodes}"))

    assert {each.rule[:4] for each in problems} == {"S203", "S109"}


def test_suggestions_are_computed_only_for_listed_mistakes(monkeypatch):
    """Comparing half a million unknown keys with ours took most of a minute."""
    asked, closest_choice = [], unknown_keys.closest_choice
    monkeypatch.setattr(
        unknown_keys, "closest_choice", lambda key, names: asked.append(key) or closest_choice(key, names)
    )
    check_fields(data_of(SPEC) | {f"key_{number}": 1 for number in range(10_000)})

    assert len(asked) == MAX_LISTED


def test_a_text_that_goes_on_is_cut_wherever_it_is_quoted(problems_of):
    """As a value, a key, a name in a rule or a fix; what programs apply has all of it."""
    long = "x" * 5_000
    patch = f"  overlay: {{objects: [{{kind: Deployment, name: {long}, patch: {{}}}}]}}\n"
    for text in (
        SPEC.replace("name: river", f"name: {long}"),
        SPEC.replace("overlap: none", f"? {long}\n  : 1", 1),
        SPEC.replace("namespace: tidemill", f"namespace: [{long}]"),
        SPEC + patch,
    ):
        messages = [each.message for each in problems_of(text)]

        assert messages
        assert not [each for each in messages if "x" * 201 in each or len(each) > 2_000]

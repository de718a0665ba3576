"""Findings as text and as JSON, and which checks there are."""

from typing import get_args

from stacks.doctor.findings import Check, Finding, findings_json, findings_lines, split_sentence
from tests.stacks.deployments import REPOSITORY

CORDONED = [
    Finding("node", f"Node node-{number}", "it is cordoned", f"kubectl uncordon node-{number}") for number in range(5)
]
SPARE = Finding("node", "Node node-9", "the cluster has no Node of that name", "name another", blocks=False)


def test_objects_with_the_same_fault_are_one_line():
    """What blocks comes first; programs get each by itself."""
    assert findings_lines([SPARE, *CORDONED], "demo", "prod") == [
        "demo, in the cluster of context prod: 6 findings, of which 5 would stop `up`",
        "  blocks  node  Node node-0, Node node-1, Node node-2 and 2 more: it is cordoned; kubectl uncordon NAME",
        "  note  node  Node node-9: the cluster has no Node of that name; name another",
    ]
    assert findings_lines(CORDONED[:1], "demo", "prod")[1] == (
        "  blocks  node  Node node-0: it is cordoned; kubectl uncordon node-0"
    )
    assert findings_json([SPARE]) == {
        "findings": [
            {
                "check": "node",
                "object": "Node node-9",
                "reason": "the cluster has no Node of that name",
                "fix": "name another",
                "blocks": False,
            }
        ]
    }


def test_no_finding_is_said():
    """In words, and as an empty list."""
    assert findings_lines([], "demo", "prod") == ["demo: nothing in the cluster of context prod stands in its way"]
    assert findings_json([]) == {"findings": []}


def test_a_sentence_has_a_reason_and_a_fix():
    """The fix stands last; where the server gave no advice, there is one for all."""
    assert split_sentence("a; b; do c") == ("a; b", "do c")
    assert split_sentence("the API server refuses (403: no)")[0] == "the API server refuses (403: no)"
    assert split_sentence("the API server refuses (403: no)")[1]


def test_every_check_has_a_row_in_the_page():
    """And the page has no row of another."""
    page = (REPOSITORY / "docs" / "doctor.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]

    assert sorted(rows) == sorted(get_args(Check))

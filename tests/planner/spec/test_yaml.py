"""Reading YAML: what stands there is what is read, and what cannot be read has a place."""

from pathlib import Path

import pytest

from planner.problems.errors import MAX_LISTED, SpecError
from planner.problems.finding import Finding
from planner.spec import yaml
from planner.spec.yaml import decode_document, parse_document, read_document
from tests.planner.spec.wrong_specs import CASES


@pytest.mark.parametrize("case", CASES["files"], ids=lambda case: f"{case['rule']} {case['text'][:20]!r}")
def test_what_is_not_a_spec_is_refused_with_its_place(case):
    """Each way of not being readable is one problem with a line and a column."""
    with pytest.raises(SpecError) as error:
        parse_document(case["text"], "spec.yaml")

    (problem,) = error.value.findings
    assert (problem.rule[:4], [problem.line, problem.column]) == (case["rule"], case["place"])


def test_a_message_quotes_the_auto_of_the_file():
    """The number that was decided in its place moves to the reason."""
    document = parse_document("nodes: auto\nunits: 3\n", "spec.yaml")
    decided = document.locate(Finding("nodes", 40, "S701 must be more", "units take more", "write more"))
    written = document.locate(Finding("units", 3, "S560 must not stand here", "windows say it", "remove it"))

    assert decided.message == "nodes (auto) must be more; units take more (auto became 40); write more"
    assert written.message == "units (3) must not stand here; windows say it; remove it"


def test_deep_nesting_is_refused_before_it_can_hurt():
    """S108: a hundred thousand brackets are one problem."""
    with pytest.raises(SpecError) as error:
        parse_document("a: " + "[" * 100_000, "spec.yaml")

    (problem,) = error.value.findings
    assert (problem.rule[:4], problem.line, problem.column) == ("S108", 1, 36)


@pytest.mark.parametrize(
    ("limit", "text", "place", "says"),
    [
        ("MAX_VALUES", "a: [1, 2, 3]\n", (1, 11), "more than 5 keys and values"),
        ("MAX_VALUES", "a: 1\nb: 2\nc: 3\n", (3, 1), "more than 5 keys and values"),
        ("MAX_PATH_CHARACTERS", "long: [1, 2]\n", (1, 8), "have more than 5 characters"),
    ],
)
def test_a_file_has_an_end(limit, text, place, says, monkeypatch):
    """S101: four million items took 0.9 GB, and each item below a long key has a path as long as the key."""
    monkeypatch.setattr(yaml, limit, 5, raising=False)
    with pytest.raises(SpecError) as error:
        parse_document(text, "spec.yaml")

    (problem,) = error.value.findings
    assert (problem.rule[:4], (problem.line, problem.column)) == ("S101", place)
    assert says in problem.reason


def test_a_flood_of_one_mistake_is_told_in_part():
    """S109: 100,000 such lines were 14 MB of messages."""
    with pytest.raises(SpecError) as error:
        parse_document("a: 1\n" * 601, "spec.yaml")

    *told, more = error.value.findings
    assert {each.rule[:4] for each in told} == {"S106"}
    assert (len(told), more.rule[:4], more.line, more.reason[:4]) == (MAX_LISTED, "S109", MAX_LISTED + 2, "S106")


def test_a_key_given_twice_hides_no_other_mistake():
    """S106: the document has what stands beside it, and says which value nobody can read."""
    document = decode_document(b"a: 1\na: 2\nb: &x 3\nc: *x\nd: 4\n", Path("spec.yaml"))

    assert document.unread == {"a", "b", "c"}
    assert document.data["d"] == 4
    assert [problem.line for _, problem in document.refused] == [2, 3, 4]


def test_a_character_that_looks_like_yaml_is_named():
    """S103: a full-width colon is no colon, and nobody sees the difference."""
    with pytest.raises(SpecError) as error:
        parse_document("a\uff1a 1\nb: 1\n", "spec.yaml")

    assert "U+FF1A, fullwidth colon" in error.value.findings[0].reason


def test_a_missing_file_is_one_sentence(tmp_path):
    """S101: a path without a file is a problem, not a traceback."""
    with pytest.raises(SpecError) as error:
        read_document(tmp_path / "none.yaml")

    assert str(error.value).endswith("must be a readable file; No such file or directory; check the path [S101]")


def test_other_encodings_are_one_sentence(tmp_path):
    """S102: a file that is not UTF-8 is a problem, not a traceback."""
    path = tmp_path / "spec.yaml"
    path.write_bytes("a: ü".encode("utf-16"))
    with pytest.raises(SpecError) as error:
        read_document(path)

    assert str(error.value).endswith("must be UTF-8 text; byte 0 (0xff) is not UTF-8; save the file as UTF-8 [S102]")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_letter_of_another_encoding_has_its_place(mark, tmp_path):
    """S102: in Latin-1 only that letter is wrong, and the message leads there; a byte order mark does not count."""
    path = tmp_path / "spec.yaml"
    path.write_bytes(mark + "version: 1\nname: café\n".encode("latin-1"))
    with pytest.raises(SpecError) as error:
        read_document(path)

    (problem,) = error.value.findings
    assert (problem.line, problem.column, problem.reason) == (2, 10, "byte 20 (0xe9) is not UTF-8")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("yes", "yes"), ("on", "on"), ("1:30", "1:30"), ("0o17", "0o17"), ("0x1f", "0x1f"), ("1_000", "1_000")),
        *(("true", True), ("~", None), ("", None), ("-3", -3), ("007", 7), ("1.5", 1.5), ("1e3", 1000.0)),
        *(('"3"', "3"), ("'true'", "true"), ("9" * 19, "9" * 19), ("2026-01-01", "2026-01-01")),
    ],
)
def test_plain_words_mean_what_they_look_like(text, value):
    """None of YAML 1.1's surprises: what is not clearly a number, true, false or null is text."""
    read = parse_document(f"a: {text}\n", "spec.yaml").data["a"]

    assert (type(read), read) == (type(value), value)


def test_keys_and_values_have_places():
    """Nested keys are found by their dotted path, list items by their index."""
    document = parse_document("a:\n  b: 1\n  c: [x, y]\n", "spec.yaml")
    places = [document.keys["a.b"], document.values["a.b"], document.values["a.c.1"]]

    assert places == [("spec.yaml", 2, 3), ("spec.yaml", 2, 6), ("spec.yaml", 3, 10)]

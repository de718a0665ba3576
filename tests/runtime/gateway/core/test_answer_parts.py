"""An answer's text is split into thoughts, words and tool calls, in the same way however it arrives."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.core.answer_parts import AnswerForm, AnswerReader, CallPart, Thought, Words, read_opening

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
PLAIN = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
FENCED = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
ARGUMENTS = '{"sort": "rye\\n", "kg": 3}'
ANSWERS = {
    "only words": (AnswerForm(), "tide </think> mill", ("", "tide </think> mill", [])),
    "thoughts, words": (AnswerForm("thinking"), "\nhm,  so \n</think>\n\ntide ", ("hm,  so", "tide ", [])),
    "thoughts alone": (AnswerForm("thinking"), "hm, \n", ("hm, \n", "", [])),
    "its own mark": (AnswerForm("undecided"), "\n<think>hm</think>tide", ("hm", "tide", [])),
    "no mark": (AnswerForm("undecided"), " <thin tide", ("", " <thin tide", [])),
    "no tools to call": (AnswerForm(), BEGIN, ("", BEGIN, [])),
    "one call": (
        AnswerForm(tool_calls="plain"),
        "tide" + BEGIN + PLAIN.format("grind", ARGUMENTS) + END,
        ("", "tide", [("grind", ARGUMENTS)]),
    ),
    "thoughts, two fenced calls, words": (
        AnswerForm("thinking", "fenced"),
        f"hm</think>{BEGIN}{FENCED.format('grind', ARGUMENTS)}\n{FENCED.format('stop', '{}')}{END}\ntide",
        ("hm", "tide", [("grind", ARGUMENTS), ("stop", "{}")]),
    ),
    "broken off in its arguments": (
        AnswerForm(tool_calls="plain"),
        BEGIN + PLAIN.format("grind", '{"a')[: -len("｜tool▁call▁end｜>")],
        ("", "", [("grind", '{"a<')]),
    ),
    "broken off in its name": (
        AnswerForm(tool_calls="plain"),
        BEGIN + "<｜tool▁call▁begin｜>gri",
        ("", "<｜tool▁call▁begin｜>gri", []),
    ),
    "no call after all": (AnswerForm(tool_calls="plain"), BEGIN + " tide", ("", "tide", [])),
}


def read(form, pieces):
    """Return (thoughts, words, calls as (name, arguments)), and the first piece of each call."""
    reader, parts = AnswerReader(form), []
    for number, piece in enumerate(pieces):
        parts += reader.push(piece, is_last=number == len(pieces) - 1)
    assert all(part.text for part in parts if not isinstance(part, CallPart))
    calls = [part for part in parts if isinstance(part, CallPart)]
    first = [part for part in calls if part.id is not None]
    assert [part.index for part in first] == list(range(reader.num_calls))
    arguments = ["".join(part.arguments for part in calls if part.index == call.index) for call in first]
    joined = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Thought, Words))
    return *joined, list(zip([call.name for call in first], arguments, strict=True))


@pytest.mark.parametrize(("form", "text", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_comes_apart(form, text, expected):
    """An answer is split in the same way whole and character by character."""
    assert read(form, [text]) == expected
    assert read(form, list(text)) == expected


@given(st.sampled_from(sorted(ANSWERS)), st.sets(st.integers(1, 200)))
def test_cuts_do_not_matter(name, cuts):
    """Pieces of any length give the same parts."""
    form, text, expected = ANSWERS[name]
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]

    assert read(form, [text[a:b] for a, b in itertools.pairwise(places)]) == expected


def test_words_do_not_wait_for_the_end():
    """Only text that may begin a mark is held back."""
    reader = AnswerReader(AnswerForm("thinking", "plain"))

    assert reader.push("hm ") == [Thought("hm")]
    assert reader.push("so") == [Thought(" so")]
    assert reader.push("</think>tide <｜tool") == [Words("tide ")]
    assert reader.push("s") == [Words("<｜tools")]


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<｜Assistant｜><think>\n", "thinking"),
        ("<｜Assistant｜></think>", "content"),
        ("<｜Assistant｜>", "undecided"),
    ],
)
def test_the_template_opens_the_answer(prompt, opening):
    """The end of the prompt tells whether the model thinks first."""
    assert read_opening(prompt) == opening

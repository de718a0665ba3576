"""A checkpoint's template renders a conversation with tools and thoughts, or the gateway refuses it by name."""

import json
import re

import msgspec
import pytest
from jinja2.filters import FILTERS

from runtime.errors import CheckpointError
from runtime.gateway.core import chat_template
from runtime.gateway.core.answer_parts import AnswerForm
from runtime.gateway.core.chat_template import load_chat_template
from runtime.gateway.core.conversation import Conversation, Message, Tool, render_chat_prompt
from runtime.gateway.edge.http_errors import ApiError

CALL = "<｜tool▁calls▁begin｜>{{ call.function.name }}<｜tool▁sep｜>{{ call.function.arguments }};"
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %};{% endif %}"
    "{% for m in messages %}{{ m['role'] }}:{{ m.content }}{% if m.role == 'tool' %}={{ m.tool_call_id }}{% endif %};"
    "{% for call in m.tool_calls %}" + CALL + "{% endfor %}{% endfor %}"
    "{% if thinking %}<think>{% else %}</think>{% endif %}"
)
FUNCTION = {"name": "grind", "parameters": {"b": "<é>", "a": None}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CONVERSATION = [
    {"role": "user", "content": "mill"},
    {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "grind", "arguments": '{"kg": 3}'}}]},
    {"role": "tool", "content": "done", "tool_call_id": "c1", "name": "grind"},
]


def render_prompt(folder, messages, tools=(), source=TEMPLATE, **options):
    template = load_chat_template(folder, source, {"bos_token": "<s>", "eos_token": "</s>"})
    said = msgspec.convert(messages, list[Message]), messages, msgspec.convert(tools, list[Tool]), tools
    return render_chat_prompt(Conversation(*said), options, template)


def test_tools_and_their_answers_are_said_by_the_template(tmp_path):
    """The template gets tools as they were sent, and calls with their arguments as text."""
    prompt = render_prompt(tmp_path, CONVERSATION, TOOLS)

    assert prompt.text == (
        '{"type": "function", "function": {"name": "grind", "parameters": {"b": "<é>", "a": null}}};user:mill;'
        'assistant:None;<｜tool▁calls▁begin｜>grind<｜tool▁sep｜>{"kg": 3};tool:done=c1;</think>'
    )
    assert prompt.answer == AnswerForm("content", "plain")


@pytest.mark.parametrize("thinking", [True, False])
def test_a_caller_chooses_whether_the_model_thinks(tmp_path, thinking):
    """The template's own variable switches thinking, and the answer is split accordingly."""
    prompt = render_prompt(tmp_path, CONVERSATION[:1], thinking=thinking)

    assert prompt.answer == AnswerForm("thinking" if thinking else "content", None)


@pytest.mark.parametrize(
    ("said", "begun", "opening"),
    [
        ({"content": "tide"}, "<think></think>tide", "content"),
        ({"content": "tide", "reasoning_content": "hm"}, "<think>hm</think>tide", "content"),
        ({"reasoning_content": "hm"}, "<think>hm", "thinking"),
    ],
)
def test_a_prefix_may_begin_with_thoughts(tmp_path, said, begun, opening):
    """A prefix may begin with thoughts, which its words end."""
    messages = [*CONVERSATION[:1], {"role": "assistant", "prefix": True} | said]
    prompt = render_prompt(tmp_path, messages, thinking=True)

    assert prompt.text == "user:mill;" + begun
    assert prompt.answer.opening == opening


@pytest.mark.parametrize(
    ("messages", "tools", "source", "complaint"),
    [
        (CONVERSATION[:1], TOOLS, "{{ messages }}", "does not say them"),
        (CONVERSATION[:1], TOOLS, "{{ messages }}{{ tools }}", "in a form not read here"),
        (CONVERSATION[:1], (), "{{ messages[3].content }}", "refuses these messages"),
        (CONVERSATION[:1], (), "{{ messages[0].content + 1 }}", "refuses these messages"),
        (CONVERSATION[:1], (), "{{ messages.append(1) }}", "refuses these messages"),
        (CONVERSATION, (), "{{ messages }}", r"messages\[1\]: this model's chat template knows no tools"),
    ],
)
def test_what_the_template_cannot_say_is_refused(tmp_path, messages, tools, source, complaint):
    """A conversation on which the template fails is a 400."""
    with pytest.raises(ApiError, match=complaint) as error:
        render_prompt(tmp_path, messages, tools, source)

    assert error.value.status == 400


def test_a_template_may_want_arguments_as_an_object(tmp_path):
    """A template that writes JSON itself gets arguments as an object; text that is no JSON is a 400."""
    source = "{% for call in messages[1].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}'tool'"
    broken = [{"id": "c1", "function": {"name": "grind", "arguments": "{"}}]

    assert render_prompt(tmp_path, CONVERSATION, source=source).text == "{\"kg\": 3}'tool'"
    with pytest.raises(ApiError, match="arguments of grind are not JSON"):
        render_prompt(
            tmp_path, [CONVERSATION[0], CONVERSATION[1] | {"tool_calls": broken}, CONVERSATION[2]], source=source
        )


def test_a_template_may_be_a_file_or_one_of_several(tmp_path):
    """`tool_use` is for conversations with tools, and a template file overrides tokenizer_config.json."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": TEMPLATE}]

    assert render_prompt(tmp_path, CONVERSATION[:1], source=named).text == "plain"
    assert render_prompt(tmp_path, CONVERSATION[:1], TOOLS, named).text.endswith("user:mill;</think>")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }} from a file")
    assert render_prompt(tmp_path, CONVERSATION[:1], source=named).text == "<s> from a file"


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{% break %}",
        "{{ f(x=1, x=2) }}",
        "{{ " + "1" * 5_000 + " }}",
    ],
)
def test_a_broken_template_is_one_sentence(source, tmp_path):
    """A broken template is one sentence, also one that breaks Python's own parser."""
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is broken"):
        render_prompt(tmp_path, CONVERSATION[:1])


@pytest.mark.parametrize("power", ["10 ** (10 ** 9)", "10 ** messages | length"])
def test_a_template_has_no_powers(power, tmp_path):
    """Neither reading a template nor rendering one computes large powers."""
    with pytest.raises(ApiError, match=r"may not use \*\*"):
        render_prompt(tmp_path, CONVERSATION[:1], source="{{ " + power + " }}")


@pytest.mark.parametrize(
    "said",
    [
        "1 | round(100000000, 'ceil')",
        "'x' * 300000000",
        "[1] * 300000000",
        " * ".join(["9" * 4000] * 100),
        "'x' * 1000000 * 2",
    ],
)
def test_what_is_large_is_not_worked_out(said, tmp_path):
    """A large value is refused when a template is read or rendered."""
    with pytest.raises(ApiError, match="a chat template may not"):
        render_prompt(tmp_path, CONVERSATION[:1], source="{{ " + said + " }}")


def test_no_filter_is_worked_out_as_a_template_is_read(monkeypatch, tmp_path):
    """No filter runs when a template is read, even in a branch that is never taken."""
    called = []
    monkeypatch.setitem(FILTERS, "upper", called.append)
    render_prompt(tmp_path, CONVERSATION[:1], source="{% if tools %}{{ 'tide' | upper }}{% endif %}")

    assert not called


def test_a_template_writes_only_so_much(monkeypatch, tmp_path):
    """A template's output is bounded as it is written, so endless loops end."""
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 100)
    source = "{% for a in range(100000) %}tide{{ no_such_function() if a == 50 }}{% endfor %}"

    with pytest.raises(ApiError, match="may not write over 100 characters"):
        render_prompt(tmp_path, CONVERSATION[:1], source=source)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ cycler() }}", "at least one item has to be provided"),
        ("{{ 'tide' | truncate(-1) }}", "expected length >= 3, got -1"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
        ("{{ raise_exception('\\ud800') }}", r"these messages: \\ud800$"),
        ("{{ raise_exception('') }}", "these messages: TemplateError$"),
        ("{{ raise_exception('tide' * 1000) }}", "these messages: (tide){125}$"),
    ],
)
def test_whatever_a_template_ends_with_is_one_sentence(source, complaint, tmp_path):
    """Any exception of a template becomes a 400 that can be written as JSON."""
    with pytest.raises(ApiError) as error:
        render_prompt(tmp_path, CONVERSATION[:1], source=source)

    assert error.value.status == 400
    assert re.search(complaint, error.value.message)
    assert msgspec.json.encode(error.value.body())


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * n }}",
        "{{ 'a' | center(n) }}",
        "{{ 'a' | indent(width=n) }}",
        "{{ ['a', 'b'] | map('center', n) | list }}",
        "{{ 'a'.ljust(n) }}",
        "{{ '%*d' % (n, 1) }}",
        "{{ '%*d' | format(n, 1) }}",
        "{{ '{:{w}}'.format(1, w=n) }}",
        "{{ lipsum(n) }}",
        "{{ messages | tojson(indent=n) }}",
    ],
)
def test_a_callers_numbers_are_bounded_where_they_count(source, tmp_path):
    """A caller's numbers are bounded in options and in messages' keys."""
    for place in ("messages[0].n", "n"):
        said = source if place == "n" else "{% set n = messages[0].n %}" + source
        messages = [CONVERSATION[0] | {"n": 2**40}]
        with pytest.raises(ApiError, match=r"refuses these messages: a chat template may not (multiply|use)") as error:
            render_prompt(tmp_path, messages, source=said, n=2**40)

        assert error.value.status == 400
    harmless = "{% macro say(x) %}{{ x }}{% endmacro %}{{ say(n) }}{{ namespace(a=n).a }}{{ 'a' | center(3) }}"
    assert render_prompt(tmp_path, CONVERSATION[:1], source=harmless, n=2**40).text == f"{2**40}{2**40} a "


KEYS = "{% for m in messages %}{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"


def test_a_template_reads_the_keys_that_it_knows(tmp_path):
    """The template gets the keys of messages, calls and functions, without nulls and hints."""
    said = {"role": "user", "content": "mill", "name": "Ann", "task": "grind", "nothing": None}
    call = {"id": "c1", "function": {"name": "grind", "arguments": "{}", "x": 5}, "y": 6, "index": 0}
    calls = [CONVERSATION[0], {"role": "assistant", "tool_calls": [call]}]
    tools = [{"type": "function", "function": FUNCTION | {"x": 5}, "cache_control": {"type": "ephemeral"}}]

    assert render_prompt(tmp_path, [said], source="{{ messages[0].task }}").text == "grind"
    assert render_prompt(tmp_path, [said], source=KEYS).text == "role=user;content=mill;name=Ann;task=grind;"
    assert render_prompt(tmp_path, [said]).text == render_prompt(tmp_path, CONVERSATION[:1]).text
    assert render_prompt(tmp_path, calls, source="{{ messages[1].tool_calls[0] }}'tool'").text == (
        "{'id': 'c1', 'type': 'function', 'function': {'name': 'grind', 'arguments': '{}', 'x': 5}, 'y': 6}'tool'"
    )
    source = "{{ tools[0] | tojson }}{# <｜tool▁calls▁begin｜> #}"
    assert json.loads(render_prompt(tmp_path, CONVERSATION[:1], tools, source).text) == (
        {"type": "function", "function": FUNCTION | {"x": 5}}
    )


def test_an_option_that_the_template_does_not_read_is_nothing(tmp_path):
    """An option that the template reads is passed on, unless it is one of the gateway's own."""
    source = "{{ effort }}{{ bos_token }}"

    assert (
        render_prompt(tmp_path, CONVERSATION[:1], source=source, effort="low", eos_token="x", other=1).text == "low<s>"
    )
    with pytest.raises(ApiError, match="may not set 'bos_token'"):
        render_prompt(tmp_path, CONVERSATION[:1], source=source, bos_token="x")


def test_a_template_that_jinja_knows_is_the_one_of_transformers(tmp_path):
    """`break` and `tojson` with its options work as in transformers."""
    source = "{% for m in messages %}{{ m | tojson(indent=1) }}{% break %}{% endfor %}"

    assert render_prompt(tmp_path, CONVERSATION[:1] * 2, source=source).text == json.dumps(CONVERSATION[0], indent=1)

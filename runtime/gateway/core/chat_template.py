"""A checkpoint's chat template: it turns a conversation into text of the form that the model was trained on.

A template is foreign code, so it runs in a sandbox. There it can change nothing, computes nothing while it is loaded,
and writes a bounded text, whatever numbers a caller sends. Its time is not bounded. The environment is that of
transformers: the same block settings, `break` and `continue`, `raise_exception`, `strftime_now`, and a `tojson` that
escapes no HTML and sorts no keys, because the model reads the text as it is.

Read from the checkpoint's folder: `chat_template.jinja`, else the `chat_template` of tokenizer_config.json, which may
be a list of named templates: `tool_use` for conversations with tools, `default` for others.
Source: huggingface/transformers `utils/chat_template_utils.py` and `tokenization_utils_base.py`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.errors import CheckpointError
from runtime.gateway.core.answer_parts import CALLS_BEGIN, FENCE, THINK_END, ToolCallForm

__all__ = ["ChatTemplate", "NamedTemplate", "load_chat_template"]

MAX_CHARACTERS = 2**25  # assumed: four times the largest body
MAX_REPEATED = 2**20  # assumed: items that a product has, or numbers given to a function or filter
RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
EXTENSIONS = ("jinja2.ext.loopcontrols",)
TOOL_ROLE = re.compile(r"""['"]tool['"]""")
DUMPED_ARGUMENTS = re.compile(r"""arguments(['"]\])?\s*\|\s*tojson""")

NamedTemplate = dict[str, str]  # name, template


@dataclass(frozen=True)
class ChatTemplate:
    """A checkpoint's chat template. `with_tools` is its template for tools, or `plain` if it has no other."""

    plain: jinja2.Template
    with_tools: jinja2.Template
    variables: frozenset[str]  # those that the template reads
    source: str  # the text of both templates
    special_texts: dict[str, str]  # bos_token and eos_token

    @property
    def renders_tools(self) -> bool:
        """True if the template lists the tools in the prompt."""
        return "tools" in self.variables

    @property
    def renders_tool_results(self) -> bool:
        """True if the template shows the results of tools in the prompt."""
        return TOOL_ROLE.search(self.source) is not None

    @property
    def tool_calls(self) -> ToolCallForm | None:
        """The form in which the model calls tools; None if it is none of DeepSeek's."""
        if CALLS_BEGIN not in self.source:
            return None
        return "fenced" if FENCE in self.source else "plain"

    @property
    def thinks(self) -> bool:
        """True if the model may think before it answers."""
        return THINK_END in self.source

    @property
    def dumps_arguments(self) -> bool:
        """True if the template takes a call's arguments as an object and writes the JSON itself."""
        return DUMPED_ARGUMENTS.search(self.source) is not None

    @property
    def options(self) -> frozenset[str]:
        """The variables that a caller may set: all that the template reads, except those that we set ourselves."""
        return self.variables - RESERVED_VARIABLES

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, options: dict[str, Any]
    ) -> str:
        """Return the conversation as text, up to where the assistant speaks. Raises whatever the template raises."""
        template = self.with_tools if tools else self.plain
        variables = {"messages": messages, "add_generation_prompt": True} | ({"tools": tools} if tools else {})
        text = _join_pieces(template.generate(**options, **self.special_texts, **variables))
        text.encode()  # raises here for half a surrogate pair, which a template can write and no tokenizer takes
        return text


def load_chat_template(
    folder: Path, configured: str | list[NamedTemplate] | None, special_texts: dict[str, str]
) -> ChatTemplate | None:
    """Return the folder's template; None if it has none. `configured` is from tokenizer_config.json.

    Raises CheckpointError if the template is broken.
    """
    file = folder / "chat_template.jinja"
    if file.exists():
        place, sources = file, {"default": _read_template(file)}
    else:
        place, sources = folder / "tokenizer_config.json", _name_templates(configured)
    if "default" not in sources:
        return None
    plain, with_tools = sources["default"], sources.get("tool_use", sources["default"])
    environment = _make_environment()
    try:
        trees = [environment.parse(source) for source in (plain, with_tools)]
        return ChatTemplate(
            plain=environment.from_string(plain),
            with_tools=environment.from_string(with_tools),
            variables=frozenset().union(*map(jinja2.meta.find_undeclared_variables, trees)),
            source=plain + with_tools,
            special_texts=special_texts,
        )
    except (jinja2.TemplateError, ArithmeticError, RecursionError, SyntaxError, ValueError) as error:
        raise CheckpointError(f"the chat_template in {place} is broken: {error}") from None


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def _name_templates(configured: str | list[NamedTemplate] | None) -> dict[str, str]:
    if configured is None or isinstance(configured, str):
        return {} if configured is None else {"default": configured}
    return {entry.get("name", "default"): entry.get("template", "") for entry in configured}


def _join_pieces(pieces: Iterable[str]) -> str:
    written, size = [], 0
    for piece in pieces:
        written.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise SecurityError(f"a chat template may not write over {MAX_CHARACTERS:,} characters")
    return "".join(written)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox that refuses `**`, large products, and large arguments such as widths and counts.

    Jinja does not evaluate an intercepted operator while it compiles a template.
    """

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate an operator. Raises SecurityError if its result could be too large."""
        if operator == "**":
            raise SecurityError(f"a chat template may not use {operator}")
        if operator == "*" and _product_size(left, right) > MAX_REPEATED:
            raise SecurityError("a chat template may not multiply to so much")
        if operator == "%" and "*" in str(left):  # the width is one of the values
            _check_numbers(right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function.

        Large arguments are refused, except arguments of macros and types, which repeat nothing themselves.
        """
        if not isinstance(function, Macro | type):
            _check_numbers((*args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)


def _product_size(left: Any, right: Any) -> int:
    """Return the size of `left * right` without computing it.

    It is the number of items if a text or list is repeated, and about the number of bits if both are numbers.
    """
    for one, times in ((left, right), (right, left)):
        if isinstance(one, Sized) and isinstance(times, int):
            return len(one) * times
    return sum(each.bit_length() for each in (left, right) if isinstance(each, int))


def _check_numbers(arguments: Iterable[Any]) -> None:
    if any(isinstance(each, int | float) and abs(each) > MAX_REPEATED for each in arguments):
        raise SecurityError(f"a chat template may not use a number over {MAX_REPEATED:,} as an argument")


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment, plain = (_Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=EXTENSIONS) for _ in range(2))
    plain.filters["tojson"], plain.filters["round"] = _to_json, _round
    environment.filters = {name: _delay_filter(name, plain) for name in plain.filters}
    environment.globals["raise_exception"] = _raise_from_template
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _delay_filter(name: str, plain: jinja2.Environment) -> Callable[..., Any]:
    """Return the filter `name` in a form that takes a context, so that it runs only while a template is rendered.

    Jinja evaluates a filter without a context already when it compiles a template.
    """

    @jinja2.pass_context
    def apply_filter(context: Context, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        return plain.call_filter(name, value, args, kwargs, context)

    return apply_filter


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if abs(precision) > sys.float_info.max_10_exp:  # Python raises 10 to this power
        raise SecurityError(f"a chat template may not round to {precision} digits")
    rounded: float = FILTERS["round"](value, precision, method)
    return rounded


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise_from_template(message: str) -> None:
    raise jinja2.TemplateError(message)

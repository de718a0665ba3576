"""JSON Schemas as grammars of llguidance. The gateway checks a schema, and ranks draw tokens by its grammar.

The library is the extra `tidemill[json]`; only this file needs it. The schema's text travels, and both ends make the
same grammar from it. White space is allowed where JSON allows it, but bounded, because a small model might write it for
ever.

The library bounds most costs of a schema, but not `multipleOf`: its automaton has a state for each remainder, and
visits all of them before the first token. So both ends count the remainders (`_num_remainders`). A schema that is made
to evade the count can still cost more, so the gateway also measures each schema's cost
(`gateway/core/schema_trial.py`).

Sources: llguidance `docs/json_schema.md`, `parser_limits`, and `parser/src/json/numeric.rs` for `multipleOf`.
"""

import importlib.util
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import llguidance

__all__ = [
    *("ANY_OBJECT", "MAX_SCHEMA_BYTES", "is_installed", "json_matcher", "read_vocabulary", "explain_schema_refusal"),
    "explain_unread_schema",
]

ANY_OBJECT = '{"type":"object"}'
MAX_SCHEMA_BYTES = 64 * 1024  # assumed: over ten times what agents send
MAX_REMAINDERS = 20_000  # measured: under 100 ms. Multiples of 60, of 0.01 or of 1000 have far fewer
MAX_DIGITS = 20  # enough for 64-bit numbers; the library takes 32 digits
OPTIONS = {"whitespace_pattern": r"[ \n]{0,20}"}  # assumed: an indented line
MISSING = "it needs llguidance, which is not installed: pip install '.[json]' in a checkout"
SEVERAL_AT_ONCE = ("$ref", "allOf", "anyOf", "oneOf", "multipleOf")  # two of these in one schema apply to one value


def is_installed() -> bool:
    """Return whether the library is installed."""
    return importlib.util.find_spec("llguidance") is not None


def explain_unread_schema(schema: str) -> str | None:
    """Return the reason why this schema must not even be parsed; None if it may be parsed.

    The check is quick enough for an event loop.
    """
    if not is_installed():
        return MISSING
    return f"its schema is over {MAX_SCHEMA_BYTES:,} bytes" if len(schema.encode()) > MAX_SCHEMA_BYTES else None


def explain_schema_refusal(schema: str) -> str | None:
    """Return the reason why answers cannot be constrained to this schema; None if they can.

    The check may take seconds.
    """
    reason = explain_unread_schema(schema) or _explain_over_limits(schema)
    if reason is not None:
        return reason
    import llguidance

    try:
        complaint = llguidance.LLMatcher.validate_grammar(_grammar(schema))
    except ValueError as error:
        complaint = str(error)
    return " ".join(complaint.split()) or None


def json_matcher(tokenizer: "llguidance.LLTokenizer", schema: str) -> "llguidance.LLMatcher":
    """Return a matcher that follows an answer and knows which tokens may come next. `get_error` returns its error."""
    import llguidance

    return llguidance.LLMatcher(tokenizer, _grammar(schema), log_level=0)


def read_vocabulary(file: Path, vocab_size: int, end_of_text: int | None) -> "llguidance.LLTokenizer":
    """Read a tokenizer.json for matchers, which takes seconds for 129,280 tokens.

    `end_of_text` is the id of the token that ends an answer; None if there is no such token.

    Raises the library's errors if it cannot read the file.
    """
    import llguidance

    return llguidance.LLTokenizer(str(file), n_vocab=vocab_size, eos_token=end_of_text)


def _grammar(schema: str) -> str:
    import llguidance

    return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)


def _explain_over_limits(schema: str) -> str | None:
    """Return the reason why no grammar may be made of this schema; None if a grammar may be made.

    The check may take 0.1 s.
    """
    try:
        num_remainders = _num_remainders(msgspec.json.decode(schema))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"its schema cannot be read as JSON: {error}"
    if num_remainders > MAX_REMAINDERS:
        return f"the values of multipleOf in its schema have together over {MAX_REMAINDERS:,} remainders"
    return None


def _num_remainders(schema: Any) -> int:
    """Return roughly how many states the schema's `multipleOf` add to llguidance's automaton.

    It has one for each remainder: 7 for a multiple of 7, and 25 for a multiple of 0.25 (its digits without factors of
    ten). Where schemas are combined, one number may have to be a multiple of all values, so each value counts with
    their least common multiple.
    """
    nodes = list(_objects(schema))
    values = [Decimal(repr(node["multipleOf"])) for node in nodes if _is_number(node.get("multipleOf"))]
    values = [value for value in values if value]
    if not values:
        return 0
    if any(_combines_schemas(node) for node in nodes):
        return _lcm_without_tens(values) * len(values)
    return sum(_lcm_without_tens([value]) for value in values)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every JSON object in the schema, at any depth and whatever its key."""
    rest = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _combines_schemas(node: dict[str, Any]) -> bool:
    """Return whether a schema combines several subschemas that one value may have to satisfy, such as `allOf`'s."""
    all_of, patterns = node.get("allOf"), node.get("patternProperties")
    return (
        sum(key in node for key in SEVERAL_AT_ONCE) > 1
        or (isinstance(all_of, list) and len(all_of) > 1)
        or (isinstance(patterns, dict) and len(patterns) + ("properties" in node) > 1)
    )


def _lcm_without_tens(values: list[Decimal]) -> int:
    """Return the least common multiple of the values, without its factors of ten: the decimal digits cover those.

    If it is over MAX_REMAINDERS, return some number over MAX_REMAINDERS, since the exact one could take seconds.
    """
    twos, fives, rest = [], [], 1
    for value in set(values):
        _, digits, exponent = value.as_tuple()
        if len(digits) > MAX_DIGITS:
            return MAX_REMAINDERS + 1
        assert isinstance(exponent, int)  # JSON has no infinity
        num_twos, odd = _divide_out(int("".join(map(str, digits))), 2)
        num_fives, factor = _divide_out(odd, 5)
        twos.append(num_twos + exponent)
        fives.append(num_fives + exponent)
        rest = math.lcm(rest, factor)
        if rest > MAX_REMAINDERS:
            return rest
    num_more = max(twos) - max(fives)
    return rest * (2**num_more if num_more > 0 else 5**-num_more)


def _divide_out(number: int, prime: int) -> tuple[int, int]:
    """Return how often `number` is divisible by the prime, and the quotient after so many divisions."""
    times = 0
    while number % prime == 0:
        number //= prime
        times += 1
    return times, number

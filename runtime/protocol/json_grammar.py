"""JSON Schemas as grammars, by llguidance: the gateway checks one, and ranks draw tokens by it.

The library is an extra, `tidemill[json]`; nothing else needs it. Both ends make the same grammar of a schema, whose
text is what travels. White space is allowed where JSON allows it, but bounded: a small model may like it forever.
Sources: llguidance `docs/json_schema.md` and `parser_limits`.
"""

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llguidance

__all__ = ["ANY_OBJECT", "MAX_SCHEMA_BYTES", "is_installed", "json_matcher", "why_no_grammar"]

ANY_OBJECT = '{"type":"object"}'
MAX_SCHEMA_BYTES = 64 * 1024  # assumed: over ten times what agents send
OPTIONS = {"whitespace_pattern": r"[ \n]{0,20}"}  # assumed: an indented line
MISSING = "it needs llguidance, which is not installed: pip install 'tidemill[json]'"


def is_installed() -> bool:
    """Return whether the library is here."""
    return importlib.util.find_spec("llguidance") is not None


def why_no_grammar(schema: str) -> str | None:
    """Return why no answer can be held to this schema, or None."""
    if not is_installed():
        return MISSING
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        return f"its schema is over {MAX_SCHEMA_BYTES:,} bytes"
    import llguidance

    try:
        complaint = llguidance.LLMatcher.validate_grammar(_grammar(schema))
    except ValueError as error:
        complaint = str(error)
    return " ".join(complaint.split()) or None


def json_matcher(tokenizer: "llguidance.LLTokenizer", schema: str) -> "llguidance.LLMatcher":
    """Return what follows an answer and says which tokens may come next. Its `get_error` says what went wrong."""
    import llguidance

    return llguidance.LLMatcher(tokenizer, _grammar(schema), log_level=0)


def _grammar(schema: str) -> str:
    import llguidance

    return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)

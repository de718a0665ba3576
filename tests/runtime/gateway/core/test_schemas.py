"""A costly schema costs its caller an answer at worst, and others nothing."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

import runtime
from runtime.gateway.core import schemas
from runtime.gateway.core.schema_trial import TOO_COSTLY
from runtime.gateway.core.schemas import Schemas
from runtime.gateway.edge.http_errors import ApiError
from runtime.protocol.json_grammar import ANY_OBJECT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")

DEMO = Path(runtime.__file__).parent / "demo"
SEVERAL_MULTIPLES = {"allOf": [{"type": "integer", "multipleOf": number} for number in (101, 103, 107, 109)]}
NESTED = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}


def refusals(asked, file=DEMO / "tokenizer.json"):
    """Return the refusal of each schema, all tried at once for one caller."""

    async def ask():
        checked = Schemas(file, 4096, 1)
        try:
            texts = [schema if isinstance(schema, str) else json.dumps(schema) for schema in asked]
            return await asyncio.gather(*(checked.find_fault("a", text) for text in texts))
        finally:
            checked.close()

    return asyncio.run(ask())


def test_what_an_answer_can_be_held_to_is_told():
    """A schema that cannot be obeyed is refused in one line, even if its grammar never ends."""
    reasons = {
        ANY_OBJECT: None,
        json.dumps(NESTED): None,
        json.dumps(SEVERAL_MULTIPLES): "over 20,000 remainders",
        '{"$ref":"#"}': "NoExtensionBias",
        '{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}': "NoExtensionBias",
        json.dumps({"type": "string", "pattern": ".*" * 2000}): "lexer precomputation failed",
        json.dumps({"type": "object", "required": [f"k{number}" for number in range(5000)]}): TOO_COSTLY,
        '{"not": {}}': "Unimplemented keys",
        json.dumps({"enum": ["日\n"]}): None,
    }

    for schema, found in zip(reasons, refusals(reasons), strict=True):
        reason = reasons[schema]
        assert (found is None) == (reason is None), schema
        assert reason is None or (reason in found and "\n" not in found)


def test_a_schema_is_tried_once():
    """A schema that comes again is not tried again."""

    async def ask():
        checked = Schemas(DEMO / "tokenizer.json", 4096, 1)
        first = await checked.find_fault("a", ANY_OBJECT)
        checked.close()
        return first, await checked.find_fault("a", ANY_OBJECT)

    assert asyncio.run(ask()) == (None, None)


def test_a_process_that_ends_is_said(tmp_path):
    """If the trial's process ends, the caller gets a 503 that says so."""
    (tmp_path / "tokenizer.json").write_text("{")

    with pytest.raises(ApiError, match="could not be checked") as error:
        refusals([ANY_OBJECT], tmp_path / "tokenizer.json")
    assert error.value.status == 503


def test_a_process_that_ended_since_is_replaced_at_once():
    """A trial process that has ended meanwhile is replaced unnoticed."""

    async def ask():
        checked = Schemas(DEMO / "tokenizer.json", 4096, 1)
        await checked.find_fault("a", ANY_OBJECT)
        first = checked._trials._process
        first.kill()
        first.wait()
        reason = await checked.find_fault("a", '{"type": "array"}')
        checked.close()
        return reason, checked._trials._process is first

    assert asyncio.run(ask()) == (None, False)


def test_so_many_wait_to_be_tried(monkeypatch):
    """When too many schemas wait, the next caller is told to come again."""
    monkeypatch.setattr(schemas, "MAX_WAITING", 1)

    with pytest.raises(ApiError, match="too many JSON schemas"):
        refusals([ANY_OBJECT, NESTED, SEVERAL_MULTIPLES])


def test_callers_take_turns(monkeypatch):
    """Callers' schemas are tried in turn, and one that leaves delays nobody."""
    monkeypatch.setattr(schemas, "MAX_WAITING", 4)
    monkeypatch.setattr(schemas._Trials, "find_fault", lambda trials, schema: tried.append(schema))
    tried = []

    async def ask():
        checked = Schemas(DEMO / "tokenizer.json", 4096, 1)
        asked = [asyncio.ensure_future(checked.find_fault(name[0], name)) for name in ("a1", "a2", "a3", "a4", "a5")]
        asked.append(asyncio.ensure_future(checked.find_fault("b", "b1")))
        await asyncio.sleep(0)
        asked[2].cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        checked.close()

    asyncio.run(ask())

    assert tried == ["a1", "b1", "a2", "a4", "a5"]


def test_a_caller_is_told_what_is_wrong_with_its_schema(gateway):
    """A wrong schema is a 400, whether or not a rank is ready."""
    schema = {"name": "a", "schema": {"$ref": "#"}}
    asked = {"model": "org/tiny", "messages": [{"role": "user", "content": "mill"}]}

    status, text = gateway.call(
        "POST",
        "/v1/chat/completions",
        json.dumps(asked | {"response_format": {"type": "json_schema", "json_schema": schema}}),
    )

    assert (status, json.loads(text)["error"]["param"]) == (400, "response_format")

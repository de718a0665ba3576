"""An answer that must be JSON of a schema is, whatever the model finds likely and on whichever rank it goes on."""

import importlib.util
import json
import math
import shutil
from pathlib import Path

import jsonschema
import pytest
import tokenizers
import torch

import runtime
from runtime.checkpoint import file_digest
from runtime.errors import RequestFailure
from runtime.protocol import json_grammar
from runtime.protocol.json_grammar import ANY_OBJECT, MAX_SCHEMA_BYTES, explain_schema_refusal, json_matcher
from runtime.protocol.messages import Sampling
from runtime.serving import constraint
from runtime.serving.constraint import Constraints
from runtime.serving.request import Request
from runtime.serving.sampling import sample

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")

DEMO = Path(runtime.__file__).parent / "demo"
VOCAB_SIZE, END = 4096, 1
SCHEMA = {
    "type": "object",
    "properties": {
        "grain": {"enum": ["rye", "oats"]},
        "kg": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["grain", "kg"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def encoder():
    return tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def request(schema=SCHEMA, seed=0, stop_ids=(END,), generated=()):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    sampling = Sampling(200, 1.0, 1.0, seed, list(stop_ids), json_schema=text)
    return Request("r", [5], sampling, generated=list(generated))


def draw_tokens(constraints, asked, num_tokens):
    """Draw up to `num_tokens` tokens from logits that depend only on the position."""
    while len(asked.generated) < num_tokens and asked.generated[-1:] != [END]:
        position = len(asked.generated)
        logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(position))
        asked.generated.append(sample(logits, asked.sampling, position, allowed_V=constraints.allowed_tokens(asked)))
    return asked.generated


@pytest.mark.parametrize("seed", range(4))
def test_any_draw_is_json_of_the_schema(encoder, seed):
    """An answer ends where its JSON ends, and another rank continues it with the same tokens."""
    tokens = draw_tokens(Constraints(DEMO, VOCAB_SIZE), request(seed=seed), 200)

    assert tokens[-1] == END
    jsonschema.validate(json.loads(encoder.decode(tokens)), SCHEMA)
    again = draw_tokens(Constraints(DEMO, VOCAB_SIZE), request(seed=seed, generated=tokens[:3]), 200)
    assert again == tokens


def test_an_unconstrained_request_pays_nothing():
    """A request without a schema reads no tokenizer and makes no mask."""
    assert Constraints(Path("/nowhere"), 8).allowed_tokens(Request("r", [5], Sampling(1, 0.0, 1.0, 0, []))) is None


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (request({"type": "strin"}), "held to a JSON schema: Invalid type: strin"),
        (request(stop_ids=()), "no token to end with"),
        (request(generated=[END, END]), "can no longer be held"),
    ],
)
def test_what_cannot_be_held_fails_alone(asked, complaint):
    """A request with a schema that cannot be obeyed fails, even if the gateway did not check it."""
    with pytest.raises(RequestFailure, match=complaint):
        Constraints(DEMO, VOCAB_SIZE).allowed_tokens(asked)


def test_the_vocabulary_is_read_before_a_request_comes(monkeypatch):
    """The vocabulary is read while the rank loads, because a step must not wait seconds for it."""
    constraints = Constraints(DEMO, VOCAB_SIZE)
    monkeypatch.setattr("llguidance.LLTokenizer", None)

    assert constraints.allowed_tokens(request()).any()


def test_a_tokenizer_that_changed_after_the_rank_said_its_digest_fails_the_request(tmp_path):
    """A tokenizer.json that changed after its digest was sent fails the request that reads it."""
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(DEMO / name, tmp_path)
    constraints = Constraints(tmp_path, VOCAB_SIZE)
    digest = file_digest(DEMO / "tokenizer.json")
    with (tmp_path / "tokenizer.json").open("a") as file:
        file.write("\n")

    assert constraints.tokenizer_digest == digest
    with pytest.raises(RequestFailure, match=r"tokenizer\.json .*: it changed after this rank started"):
        constraints.allowed_tokens(request(stop_ids=(END + 1,)))


def test_a_checkpoint_without_a_tokenizer_fails_the_request(tmp_path):
    """Without a tokenizer.json the request fails, and the unit does not."""
    with pytest.raises(RequestFailure, match=r"tokenizer\.json cannot be used"):
        Constraints(tmp_path, VOCAB_SIZE).allowed_tokens(request())


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (ANY_OBJECT, None),
        ('{"not": {}}', "Unimplemented keys"),
        ('{"pattern": "(", "type": "string"}', "unclosed group"),
        ('{"$ref": "http://mill/tide"}', "not present"),
        ("[]", ""),
        ("{", ""),
        (json.dumps({"enum": ["x" * MAX_SCHEMA_BYTES]}), "is over 65,536 bytes"),
    ],
)
def test_a_schema_is_checked_in_one_line(schema, reason):
    """A schema that the library cannot obey in full is refused in one line."""
    found = explain_schema_refusal(schema)

    assert (found is None) == (reason is None)
    assert reason is None or (reason in found and "\n" not in found)


@pytest.mark.parametrize(
    ("schema", "is_refused"),
    [
        ({"type": "integer", "multipleOf": 19_997}, False),
        ({"type": "integer", "multipleOf": 99_991}, True),
        ({"type": "integer", "multipleOf": 1_000_000}, False),
        ({"allOf": [{"type": "integer", "multipleOf": number} for number in (101, 103, 107, 109)]}, True),
        ({"type": "integer", "multipleOf": 1009, "anyOf": [{"multipleOf": 1013}]}, True),
        ({"items": {"anyOf": [{"type": "integer", "multipleOf": 99}, {"type": "number", "multipleOf": 0.97}]}}, False),
        ({"properties": {str(each): {"type": "number", "multipleOf": each} for each in (0.01, 7, 900, 1000)}}, False),
        ({"properties": {str(each): {"type": "integer", "multipleOf": each} for each in range(9000, 9009)}}, True),
        ({"properties": {"multipleOf": {"type": "string"}}, "required": ["multipleOf"]}, False),
    ],
)
def test_remainders_are_counted_before_anything_is_made(schema, is_refused, monkeypatch):
    """A schema with too many remainders is refused before the library visits them, which would take minutes."""
    monkeypatch.setattr("llguidance.LLMatcher.validate_grammar", lambda grammar: "")
    reason = explain_schema_refusal(json.dumps(schema))

    assert (reason is not None) == is_refused
    assert not is_refused or "multipleOf" in reason


def test_remainders_are_counted_with_small_numbers(monkeypatch):
    """Values of multipleOf with hundreds of digits are counted without their least common multiple."""
    sizes, lcm = [], math.lcm
    monkeypatch.setattr(math, "lcm", lambda *numbers: sizes.extend(map(abs, numbers)) or lcm(*numbers))
    floats = [{"multipleOf": float(f"{number}.25e{number % 600 - 300}")} for number in range(1, 1500)]
    integers = [{"multipleOf": 10**digits + 1} for digits in range(1, 200)]

    for values in (floats, integers, floats[:3]):
        assert explain_schema_refusal(json.dumps({"allOf": [{}, {}], "anyOf": values}))
    assert max(sizes) < 2**64


def test_requests_of_one_schema_share_the_making_of_its_grammar(monkeypatch):
    """Requests with one schema share its grammar, and each has its own state."""
    constraints, made = Constraints(DEMO, VOCAB_SIZE), []
    monkeypatch.setattr(constraint, "json_matcher", lambda *words: made.append(json_matcher(*words)) or made[-1])

    first = draw_tokens(constraints, request(), 3)

    assert draw_tokens(constraints, request(), 200)[:3] == first
    assert len(made) == 1


def test_without_the_library_it_is_named(monkeypatch):
    """Without the library the refusal says what to install."""
    monkeypatch.setattr(json_grammar.importlib.util, "find_spec", lambda name: None)

    assert explain_schema_refusal(ANY_OBJECT) == json_grammar.MISSING

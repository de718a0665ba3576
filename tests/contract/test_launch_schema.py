"""What the planner writes is what `launch.schema.json` says, which is what `runtime/launch.py` reads."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from planner.compiler import compile_plan
from planner.rules.check import check_spec

SCHEMA = json.loads((Path(__file__).parent / "launch.schema.json").read_text())
DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"

UNIT_DIGEST_KEYS = (
    *("version", "unit", "phase", "device", "ranks", "places", "spares", "expert_map", "split", "precision"),
    *("overlap", "deterministic", "kv_cache", "model", "checkpoint", "limits"),
)


@pytest.fixture(scope="module")
def launch_files():
    """File name -> text, of the demo."""
    return compile_plan(check_spec(DEMO)).launch_files()


@pytest.fixture(scope="module")
def documents(launch_files):
    """File name -> document, read back from the text."""
    return {name: json.loads(text) for name, text in launch_files.items()}


def test_the_schema_is_one():
    """It is valid JSON Schema itself."""
    Draft202012Validator.check_schema(SCHEMA)


def test_there_is_one_file_a_unit_and_one_for_the_gateway(documents):
    """Named after the units."""
    assert list(documents) == ["demo-prefill-0.launch.json", "demo-decode-0.launch.json", "gateway.launch.json"]


def test_every_document_is_valid(documents):
    """Nothing missing, nothing unknown, no value out of range."""
    validator = Draft202012Validator(SCHEMA)

    assert [error.message for document in documents.values() for error in validator.iter_errors(document)] == []


def test_file_bytes_are_sorted_json(launch_files):
    """Sorted keys, one space of indent, a line for each layer of a map, a final line end."""
    for text in launch_files.values():
        document = json.loads(text)
        rows = document.get("expert_map", {}).get("physical_to_logical", [])
        lines = text.splitlines()
        expected = json.dumps(document, sort_keys=True, indent=1).splitlines()

        assert "".join(text.split()) == "".join("".join(expected).split())
        assert [line for line in lines if re.search(r"\d,\d", line)] == [
            f"   [{','.join(map(str, row))}]{',' if row is not rows[-1] else ''}" for row in rows
        ]
        assert [line for line in lines if line.startswith(' "')] == [line for line in expected if line[:2] == ' "']
        assert text.endswith("}\n")


def test_digests_cover_what_the_schema_says(documents):
    """Computed anew from the documents, by the schema's words, the digests come out as written."""
    for document in documents.values():
        rest = {key: value for key, value in document.items() if key != "launch_digest"}
        assert document["launch_digest"] == _digest(rest)
        if document["kind"] == "unit":
            assert document["unit_digest"] == _digest({key: document[key] for key in UNIT_DIGEST_KEYS})
            assert document["kv_digest"] == _digest({key: document[key] for key in ("kv_cache", "model", "checkpoint")})
            assert document["expert_map"]["sha256"] == _digest(document["expert_map"]["physical_to_logical"])


def test_all_documents_share_the_kv_digest(documents):
    """Prefill, decode and the gateway exchange requests and KV."""
    assert len({document["kv_digest"] for document in documents.values()}) == 1


def test_the_checkpoint_is_the_one_that_was_planned_for(documents):
    """Its digests are those of the config's bytes, and of the manifest's beside it."""
    folder = DEMO.parents[2] / "runtime" / "demo"
    for key, name in (("config_digest", "config.json"), ("weights_digest", "tidemill-checkpoint.json")):
        digest = f"sha256:{hashlib.sha256((folder / name).read_bytes()).hexdigest()}"
        assert {document["checkpoint"][key] for document in documents.values()} == {digest}


def _digest(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

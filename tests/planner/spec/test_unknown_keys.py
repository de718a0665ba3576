"""Keys that the spec lacks: the table of what people write elsewhere holds, and only what is certain is a change."""

import json
import re
from copy import deepcopy
from typing import get_args

import pytest

from planner.facts.terms import Overlap
from planner.problems.fix import apply_change, is_misspelling
from planner.spec.declared import section_of
from planner.spec.fields import check_fields
from planner.spec.schema import Spec
from planner.spec.unknown_keys import read_table
from tests.planner.layout.test_memory import PAIR

ROWS = [(row, place) for row in read_table() for place in row.places]
WINDOW = {"at": "08:00", "prefill_units": 1, "decode_units": 1}
VOLUME = {"mount_path": "/models", "claim": "models"}

# A spec that has each section of the table, so that a key can stand in it.
ALL = PAIR | {
    "cluster": PAIR["cluster"] | {"gpu": {"name": "own", "memory": "94GiB"}, "nodes": [{"name": "a"}]},
    "model": {"catalog": "deepseek-r1"},
    "slo": {},
    "traffic": {"input_tokens": 1, "output_tokens": 1},
    "cost": {
        "usd_per_gpu_hour": 1,
        "prices": {"input_hit": 1, "input_miss": 1, "output": 1},
    },
    "operating_point": {"decode": {}, "mixed": {}},
    "schedule": {"start": {}, "windows": [WINDOW], "other_days": [{"days": ["sunday"], "windows": [WINDOW]}]},
    "kubernetes": {
        "volumes": [VOLUME],
        "gateway": {"volumes": [VOLUME]},
        "resources": {each: {"cpus": 1, "memory": "1GiB"} for each in ("unit", "gateway")},
        "rdma": {"resource": "rdma/hca"},
        "tolerations": [{"key": "gpu"}],
        "stage": {"source": "/models/r1", "host_path": "/mnt/nvme"},
        "controller": {"demand": {}},
    },
    "gateway": {},
}


@pytest.mark.parametrize(("row", "place"), ROWS, ids=lambda each: str(getattr(each, "names", each))[:40])
def test_every_row_of_the_table_is_of_the_spec_as_it_is(row, place):
    """None of its names is a field there, what it says to write is one, and its reason is what a user reads."""
    for name in row.names:
        assert row.reason in {each.reason for each in check_fields(_with(name, place)).findings}, name
    fields = set(re.findall(r"[a-z]+_[a-z_]+", row.write)) - {*row.names, "dp_size"}
    assert fields <= {*FIELDS, *get_args(Overlap)}


@pytest.mark.parametrize(
    ("change", "path", "words", "is_change"),
    [
        (
            {"decode.max_requests": None, "decode.max-num-seqs": 8},
            "decode.max-num-seqs",
            "did you mean max_requests?",
            True,
        ),
        (
            {"decode.max_requests": None, "decode.maxRequests": 8},
            "decode.maxRequests",
            "did you mean max_requests?",
            True,
        ),
        ({"decode.max_num_seqs": 8, "decode.max_requests": 4}, "decode.max_num_seqs", "mean max_requests?", False),
        ({"decode.max_model_len": "32k"}, "decode.max_model_len", "did you mean max_request_tokens?", False),
        ({"decode.tp": 8}, "decode.tp", "write attention_tp or ep_size", False),
        ({"decode.gpu_memory_utilization": 0.9}, "decode.gpu_memory_utilization", "remove it", True),
        ({"kubernetes.port": 8001}, "kubernetes.port", "did you mean gateway.port?", True),
        ({"max_batch_tokens": 4096}, "max_batch_tokens", "write prefill.max_batch_tokens or decode.max", False),
        ({"decode.min_unit": 2}, "decode.min_unit", "write one of these, or remove it", False),
        ({"slo.ttft_s": 2}, "slo.ttft_s", "write ttft_ms or tpot_ms, in milliseconds", False),
        ({"engine_args": 1}, "engine_args", "write prefill.engine_args or decode.engine_args", False),
        ({"decode.overlap": "five-stage"}, "decode.overlap", "did you mean five_stage?", True),
        ({"decode.precision": "fp16"}, "decode.precision", "write fp8 or", False),
        ({"decode.precision": "w8a16"}, "decode.precision", "write fp8 or", False),
        ({"decode.precision": "bfloat16"}, "decode.precision", "did you mean bf16?", True),
        ({"model": "deepseek-ai/DeepSeek-R1"}, "model", "did you mean deepseek-r1?", True),
        ({"model": "org/DeepSeek-R1-AWQ"}, "model", "give its config.json", False),
        ({"model": "deepseek-r2"}, "model", "give its config.json", False),
    ],
    ids=str,
)
def test_only_what_is_certain_is_a_change(change, path, words, is_change, problems_of):
    """Several fields, a field that is given and a value that does not fit get words and no change."""
    problem = next(each for each in problems_of(json.dumps(apply_change(PAIR, change))) if each.path == path)

    assert words in str(problem.fix)
    assert bool(problem.changes) == is_change


def test_one_mistake_never_hides_another(problems_of):
    """What may have been meant by the first says nothing about the others."""
    change = {"model": "deepseek-r2", "kubernetes.volumes": [{"path": "/mnt"}], "decode.max_num_seqs": "8"}
    problems = problems_of(json.dumps(apply_change(PAIR, change)))

    assert {(each.path, each.rule[:4]) for each in problems} == {
        ("model", "S304"),
        ("kubernetes.volumes.0.path", "S201"),
        ("kubernetes.volumes.0.mount_path", "S202"),
        ("decode.max_num_seqs", "S201"),
    }


@pytest.mark.parametrize("section", [None, "x", 1, [], [{"a": 1}], {"controller": []}, {"controller": "x"}], ids=str)
def test_a_field_of_another_section_is_offered_where_that_can_hold_it(section, problems_of):
    """What stands in place of the section is a mistake of its own, if it is one."""
    problems = problems_of(json.dumps(PAIR | {"heal": {}, "kubernetes": section}))
    problem = next(each for each in problems if each.path == "heal")

    assert str(problem.fix) == "did you mean kubernetes.controller.heal?"


@pytest.mark.parametrize(
    ("word", "choice", "is_one"),
    [
        *(("overlpa", "overlap", True), ("redundent_experts", "redundant_experts", True), ("nmae", "name", True)),
        *(("min_units", "units", False), ("min_requests", "max_requests", False), ("fp4_tflops", "fp8_tflops", False)),
        *(("fp16", "bf16", False), ("w8a8", "w4a8", False), ("ttft_s", "ttft_ms", False), ("FP8", "fp8", True)),
    ],
)
def test_a_misspelling_keeps_its_words_and_digits(word, choice, is_one):
    """Another word or another digit makes another name."""
    assert is_misspelling(word, choice) == is_one


def _with(name, place):
    """`ALL` with the key or the value `name` at a place of the table."""
    data = deepcopy(ALL)
    parts = (place if place is not None else "decode").replace("PHASE", "decode").split(".")
    is_value = parts[-1].endswith("precision")
    here = data
    for part in parts[:-1] if is_value else filter(None, parts):
        here = here[part][0] if isinstance(here[part], list) else here[part]
    here.update({parts[-1]: name} if is_value else {name: 1})
    return data


def _fields_of(section):
    for name, field in section.model_fields.items():
        yield name
        if inner := section_of(field):
            yield from _fields_of(inner)


FIELDS = {*_fields_of(Spec)}

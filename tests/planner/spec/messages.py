"""Every message of the planner, a rule after another: `messages.txt`, which `python -m tests.docs` writes.

Whoever changes a message reads it there, as a user would, beside those of its kind.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from planner.compiler import compile_plan
from planner.facts.digest import pretty_json
from planner.plan.fit import check_fit
from planner.plan.plan import document_digest, plan_digest
from planner.problems.errors import TidemillError
from planner.problems.printable import printable
from planner.report import picture
from planner.rules.check import check_spec
from planner.rules.feasible import maps_cover
from planner.spec.schema import Spec
from tests.planner.conftest import SPEC
from tests.planner.engines.deployments import engine_refusals
from tests.planner.layout.test_memory import PAIR
from tests.planner.spec.brought_about import answers, plan_or_problems, problems_of_case
from tests.planner.spec.wrong_specs import CASES

__all__ = ["MESSAGES", "OTHERS", "messages_by_rule", "messages_page"]

MESSAGES = Path(__file__).parent / "messages.txt"
DIGEST = re.compile(r"sha256:[0-9a-f]{8,}(\.\.\.)?")  # of a plan: another in every version of the planner
HEAD = "Every message of the planner, by rule. Written by `python -m tests.docs`: change what it is made from."


def messages_page(folder):
    """Return the page; `folder` is a `spec_folder`."""
    found = {}
    for group, cases in CASES.items():
        for index, case in enumerate(cases):
            problems = problems_of_case(folder, group, index)[: 1 if group == "refused" else None]
            found.setdefault(case["rule"], {}).update(dict.fromkeys(each.message for each in problems))
    for rule, bring_about in OTHERS.items():
        problems = [each for each in bring_about(folder) if each.rule.startswith(rule)]
        found.setdefault(rule, {}).update(dict.fromkeys(each.message for each in problems))
    parts = ("\n".join([rule, *(f"  {printable(each)}" for each in found[rule])]) for rule in sorted(found))
    return DIGEST.sub("sha256:...", "\n\n".join([HEAD, *parts]) + "\n")


def messages_by_rule(page=MESSAGES):
    """Return rule -> its messages, as a page has them."""
    parts = (part.splitlines() for part in page.read_text().split("\n\n")[1:])
    return {rule: [each.strip() for each in messages] for rule, *messages in parts}


def _written(folder, name, text):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def _validated(name, text):
    """What `validate` says of a file with this text."""
    return lambda folder: answers(folder, "validate", _written(folder, name, text))


def _rendered(folder, document, *words):
    """What `render` says of this plan."""
    return answers(folder, "render", _written(folder, "plan.json", pretty_json(document)), *words, "-o", "rendered")


def _plan(folder, text=SPEC):
    return json.loads(pretty_json(plan_or_problems(folder, text)[0].as_json()))


def _with_other_nodes(folder):
    document = _plan(folder)
    document["units"][0]["nodes"] = ["node-9"]
    return document


def _with_other_references(folder):
    document = _with_other_nodes(folder)
    document["digest"] = plan_digest(document, Spec.model_validate(document["spec"]))
    return _rendered(folder, document | {"document_digest": document_digest(document)})


def _raised(function, *arguments):
    try:
        function(*arguments)
    except TidemillError as error:
        return error.findings
    return ()


def _spec(folder, data):
    return check_spec(folder / _written(folder, "other.yaml", json.dumps(data, indent=1)))


def _of_another_engine(folder):
    plan, _ = plan_or_problems(folder, SPEC)
    return _raised(plan.with_sections(written=plan.written | {"engine": "sglang"}, refusals=()).require_local)


def _of_an_unknown_model(folder):
    spec = _spec(folder, PAIR | {"engine": "vllm"})
    return list(engine_refusals(replace(spec, model=replace(spec.model, model_type="llama4"))))


def _of_units_in_racks(_):
    covered = SimpleNamespace(written=SimpleNamespace(coverage="rack"))
    return maps_cover(SimpleNamespace(resolved=covered, maps={"decode": SimpleNamespace(is_covered=False)}))


RACKS = PAIR | {
    "coverage": "rack",
    "cluster": PAIR["cluster"] | {"rack_size": 2},
    "prefill": PAIR["prefill"] | {"redundant_experts": 256},
    "decode": PAIR["decode"] | {"redundant_experts": 320},
}

HALVED = PAIR | {"decode": PAIR["decode"] | {"overlap": "five_stage", "max_requests": 16}}
TRAFFIC = {"input_tokens": 1e9, "output_tokens": 1e8, "profile": [1.0] * 24}
FLOODED = PAIR | {"traffic": TRAFFIC | {"input_tokens": 1e13}, "slo": {"ttft_ms": 10_000}}
DAY = {"windows": [{"at": f"{hour:02}:00", "prefill_units": 1 + hour % 2, "decode_units": 1} for hour in range(24)]}

FLOODS = (SPEC + "".join(f"key_{number}: 1\n" for number in range(1_200)), "a: {{ b }}\n" * 600)


def _starting(**schedule):
    """A spec whose prefill units start every second hour."""
    phases = {
        phase: {key: each for key, each in PAIR[phase].items() if key != "units"} for phase in ("prefill", "decode")
    }
    return PAIR | phases | {"schedule": DAY | schedule}


def _require_nothing_installed():
    with patch.object(picture.importlib.util, "find_spec", lambda _: None):
        picture.require_pictures("png", None)


# What is no case of `wrong_specs.yaml`: it takes a file that is no text, a plan, or a value that no spec can have.
OTHERS = {
    "S101": lambda folder: answers(folder, "validate", "none.yaml"),
    "S102": _validated("latin.yaml", "version: 1\nname: café\n".encode("latin-1")),
    "S109": lambda folder: [problem for text in FLOODS for problem in _validated("flood.yaml", text)(folder)],
    "S722": _of_units_in_racks,
    "S763": lambda folder: [
        finding
        for late in ({"warm_up": "1min"}, {"start": {"storage": "10MB/s"}})
        for finding in _raised(check_fit, _spec(folder, _starting(**late)))
    ],
    "S723": lambda folder: check_fit(_spec(folder, RACKS)).left_to_plan,
    "W115": lambda folder: compile_plan(_spec(folder, PAIR | {"slo": {"tpot_ms": 20}})).warnings,
    "W138": lambda folder: compile_plan(_spec(folder, FLOODED)).warnings,
    "W137": lambda folder: compile_plan(_spec(folder, HALVED)).warnings,
    "S753": _of_another_engine,
    "S709": _of_an_unknown_model,
    "S908": _with_other_references,
    "S909": lambda folder: _rendered(folder, _with_other_nodes(folder)),
    "S911": lambda folder: _rendered(folder, _plan(folder), "--previous", "plan.json"),
    "S912": lambda folder: _validated("plan.json", pretty_json(_plan(folder)))(folder),
    "S914": lambda folder: answers(folder, "plan", _written(folder, "spec.yaml", SPEC), "--calibration", "none.json"),
    "S915": lambda folder: answers(
        folder,
        *("plan", _written(folder, "spec.yaml", SPEC), "--calibration", _written(folder, "measured.json", "[1]")),
    ),
    "S918": lambda _: _raised(_require_nothing_installed),
    "S919": lambda folder: answers(folder, "report", _written(folder, "spec.yaml", SPEC), "--chart", "day"),
    "S922": lambda folder: answers(folder, "init", "-o", "first.yaml", "--model", "deepseek-r1", "--gpu", "h800"),
    "S923": lambda folder: answers(
        folder,
        *(
            "init",
            "--model",
            "deepseek-r1",
            "--gpu",
            "h800",
            "--nodes",
            "22",
            "-o",
            _written(folder, "spec.yaml", SPEC),
        ),
    ),
    "S921": lambda folder: answers(folder, "explain", "decode.ep_sise"),
    "S916": lambda folder: answers(folder, "plan", _written(folder, "spec.yaml", SPEC), "--unit", "decode-9"),
    "S917": lambda folder: answers(folder, "diff", *[_written(folder, "spec.yaml", SPEC)] * 2),
}

"""The layouts of `layouts.yaml`: what the planner says of each, and where its fixes lead."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from planner.candidate.candidate import Candidate
from planner.compiler import compile_plan
from planner.plan.fit import check_fit
from planner.problems.errors import InfeasibleError, SpecError
from planner.problems.fix import apply_change
from planner.rules.check import check_document
from planner.search.auto import decide
from planner.spec.yaml import parse_document

__all__ = ["LAYOUTS", "Verdict", "changes_hardware_or_weights", "compiled", "data_of", "fixed", "verdict_of"]

FOLDER = Path(__file__).parent
LAYOUTS = yaml.load((FOLDER / "layouts.yaml").read_text(), Loader=yaml.CSafeLoader)


@dataclass(frozen=True)
class Verdict:
    """What `validate` says: the layout and memory of each phase, or findings."""

    layouts: tuple
    memory: tuple
    findings: tuple

    def in_words(self):
        """One line for people."""
        if self.findings:
            return " / ".join(f"{problem.message} [{problem.rule[:4]}]" for problem in self.findings)
        return "; ".join(map(_phase_in_words, self.layouts, self.memory))


def data_of(layout):
    """The spec as plain data."""
    return {"version": 1, "name": "published"} | layout["spec"]


def verdict_of(data):
    """What `tidemill validate` finds."""
    try:
        spec = _checked(data)
        left = check_fit(spec).left_to_plan
    except (SpecError, InfeasibleError) as error:
        return Verdict((), (), tuple(error.findings))
    candidate = Candidate.of(decide(spec).spec)
    return Verdict(candidate.layouts, candidate.memory, left)


def compiled(data):
    """The whole plan."""
    return compile_plan(_checked(data))


def fixed(data, verdict):
    """The spec after each change that the first problem offers."""
    return [apply_change(data, change) for change in verdict.findings[0].changes]


def changes_hardware_or_weights(before, after):
    """Which of them differ: the model, a GPU, how many there are, or a precision that somebody wrote."""
    kinds = {
        "model": lambda spec: spec["model"],
        "gpu": lambda spec: (spec["cluster"]["gpu"], spec["cluster"]["gpus_per_node"]),
        "nodes": lambda spec: spec["cluster"]["nodes"],
    }
    found = {kind for kind, of in kinds.items() if of(before) != of(after)}
    written = {name: each["precision"] for name, each in _phases(before).items() if "precision" in each}
    now = {name: each.get("precision") for name, each in _phases(after).items()}
    return found | ({"precision"} if any(now.get(name, each) != each for name, each in written.items()) else set())


def _checked(data):
    return check_document(parse_document(json.dumps(data), str(FOLDER / "spec.yaml")))


def _phases(data):
    return {name: data[name] for name in ("prefill", "decode", "mixed") if name in data}


def _phase_in_words(layout, memory):
    groups = "" if layout.attention_tp == 1 else f", attention over {layout.attention_tp}"
    slots = f"{layout.slots_per_gpu} expert{'' if layout.slots_per_gpu == 1 else 's'} a GPU"
    weights = f"{memory.weight_bytes / 1e9:.1f} GB of weights"
    return f"{layout.phase} EP{layout.ep_size}{groups}: {slots}, {weights}, KV of {memory.kv_tokens:,} tokens a GPU"

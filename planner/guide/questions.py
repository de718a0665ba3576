"""The six questions of `tidemill init`: each with its default, its option, and the form of its answer.

On a terminal, `init` asks the questions one by one, and repeats a question after a wrong answer. Without a terminal,
options give the answers. Model, GPU and nodes are required then, since nobody can guess them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.facts.catalog import GPUS, SUGGESTED_GPU, same_gpu
from planner.families import MODELS
from planner.guide.first_spec import Answers, Kubernetes, Slo, Traffic
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.problems.fix import Fix, did_you_mean
from planner.rules.forms import FORMS
from planner.spec.operating_point import MAX_MS
from planner.spec.traffic import MAX_TOKENS

NONE = "none"
MANIFESTS = "chat/tidemill-runtime-gpu:0.1.0"  # the name under which docs/in-a-cluster.md builds the image
PLANNED_GPUS = tuple(name for name, gpu in GPUS.items() if gpu.usable_bytes)
MAX_NODES, MAX_GPUS_PER_NODE = 20_000, 64  # of cluster.nodes and cluster.gpus_per_node
USUAL_GPUS_PER_NODE = 8  # of HGX and OAM boards; the catalog has what differs
NUMBER = re.compile(r"(0|[1-9][0-9]*)([.][0-9]+)?(e[0-9]{1,2})?")  # a number that YAML reads as the same number


@dataclass(frozen=True)
class Question:
    """A question, the option that answers it without a terminal, and the function that reads either answer."""

    option: str
    words: str
    default: str
    metavar: str
    read: Callable[[str], Any]
    is_required: bool = False  # without a terminal


def ask(read_line: Callable[[str], str]) -> Answers:
    """Ask every question with `read_line`, which shows a prompt and returns a line, or "" at the end of the input.

    Raises CallError if the input ends before the last answer.
    """
    return _answers({question.option: _ask(question, read_line) for question in QUESTIONS})


def read_options(given: Mapping[str, str | None]) -> Answers:
    """Return the answers in `given`, option -> text. Raises CallError with every missing or wrong answer."""
    wrong, read = list[Finding](), dict[str, Any]()
    for question in QUESTIONS:
        words = given.get(question.option)
        if words is None and question.is_required:
            fix = f"for example {question.option} {question.default}"
            rule, reason = "S922 is required without a terminal", "nobody is asked there"
            wrong.append(Finding(question.option, None, rule, reason, fix).at("tidemill init"))
            continue
        try:
            read[question.option] = question.read(question.default if words is None else words)
        except CallError as error:
            wrong += error.findings
    if wrong:
        raise CallError(wrong)
    return _answers(read)


def _ask(question: Question, read_line: Callable[[str], str]) -> Any:
    prompt = f"{question.words} [{question.default}]: "
    while line := read_line(prompt):
        try:
            return question.read(line.strip() or question.default)
        except CallError as error:
            prompt = f"{error}\n{question.words} [{question.default}]: "
    raise _wrong(question.option, None, "is required", "the input ended before", f"for example {question.default}")


def _answers(read: Mapping[str, Any]) -> Answers:
    nodes, gpus_per_node = read["--nodes"]
    gpu = read["--gpu"]
    return Answers(
        model=read["--model"],
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=gpus_per_node or GPUS[gpu].node_gpus or USUAL_GPUS_PER_NODE,
        traffic=read["--traffic"],
        slo=read["--slo"],
        kubernetes=read["--kubernetes"],
    )


def _read_model(words: str) -> str:
    if words not in MODELS:
        reason = "a spec describes any other by its config.json (model.config)"
        raise _wrong("--model", words, "must be in the catalog", reason, did_you_mean(words, list(MODELS)))
    return words


def _read_gpu(words: str) -> str:
    if words not in PLANNED_GPUS:
        reason = "a spec describes any other itself (cluster.gpu)"
        meant = did_you_mean(same_gpu(words) or words, PLANNED_GPUS)
        raise _wrong("--gpu", words, "must be in the catalog", reason, meant)
    return words


def _read_nodes(words: str) -> tuple[int, int | None]:
    """Return (number of nodes, number of GPUs on each or None) from `words`, such as 22x8 or 22.

    Raises CallError for other words, and for numbers that are too large.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,4})(?:x([1-9][0-9]?))?", words, re.ASCII)
    nodes, gpus = (int(found[1]), int(found[2]) if found[2] else None) if found else (0, None)
    if not 1 <= nodes <= MAX_NODES or (gpus or 1) > MAX_GPUS_PER_NODE:
        rule = f"must be NODES or NODESxGPUS, up to {MAX_NODES} nodes of up to {MAX_GPUS_PER_NODE} GPUs"
        raise _wrong("--nodes", words, rule, "a plan needs to know the nodes", "for example 22x8")
    return nodes, gpus


def _read_traffic(words: str) -> Traffic | None:
    pair = _read_pair("--traffic", words, 1, MAX_TOKENS, "INPUT/OUTPUT tokens of a day", "10e9/2e9")
    return Traffic(*pair) if pair else None


def _read_slo(words: str) -> Slo | None:
    pair = _read_pair("--slo", words, 0.1, MAX_MS, "TTFT/TPOT in milliseconds", "2000/50")
    return Slo(*pair) if pair else None


def _read_pair(option: str, words: str, least: float, most: float, form: str, example: str) -> Sequence[str] | None:
    """Return the two numbers in `words`, such as 2000/50, as they are written; None for the answer `none`.

    Raises CallError unless both are numbers from `least` to `most`.
    """
    if words == NONE:
        return None
    found = words.split("/")
    if len(found) != 2 or not all(NUMBER.fullmatch(each) and least <= float(each) <= most for each in found):
        rule = f"must be {form}, each from {least:g} to {most:g}, or {NONE}"
        raise _wrong(option, words, rule, "a plan is held against both", f"for example {example}")
    return found


def _read_kubernetes(words: str) -> Kubernetes:
    namespace, slash, image = words.partition("/")
    if not slash:
        reason = "Kubernetes is required: a spec without an image gives a plan that cannot run"
        fix = f"leave it out for {MANIFESTS}, and change that in the file later"
        raise _wrong("--kubernetes", words, "must be NAMESPACE/IMAGE", reason, fix)
    parts = {"kubernetes.namespace": namespace, "kubernetes.image": image}
    wrong = [each for path, part in parts.items() for each in FORMS[path].findings("--kubernetes", part, part)]
    if wrong:
        raise CallError([each.at("tidemill init") for each in wrong])
    return Kubernetes(namespace, image)


def _wrong(option: str, words: str | None, rule: str, reason: str, fix: Fix | str) -> CallError:
    return CallError([Finding(option, words, f"S922 {rule}", reason, fix).at("tidemill init")])


QUESTIONS = (
    Question("--model", "Model of the catalog", next(iter(MODELS)), "NAME", _read_model, is_required=True),
    Question("--gpu", f"GPU ({', '.join(PLANNED_GPUS)})", SUGGESTED_GPU, "NAME", _read_gpu, is_required=True),
    Question("--nodes", "Nodes, and GPUs of each", "1x8", "NODES[xGPUS]", _read_nodes, is_required=True),
    Question("--traffic", "Input/output tokens of a day, or none", NONE, "INPUT/OUTPUT", _read_traffic),
    Question("--slo", "Promised TTFT/TPOT in ms, or none", NONE, "TTFT/TPOT", _read_slo),
    Question("--kubernetes", "Kubernetes NAMESPACE/IMAGE", MANIFESTS, "NAMESPACE/IMAGE", _read_kubernetes),
)

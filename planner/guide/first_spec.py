"""A first spec with comments, from six answers.

The answers are what only the user knows. Fields that the planner can decide are `auto`, and fields that can wait are
comments. The text is rendered from `templates/init/spec.yaml.j2`, and checked before it is returned.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from planner.command.printed import require_writable
from planner.families import MODELS
from planner.problems.errors import CallError, OutputError
from planner.problems.finding import Finding
from planner.rules.check import check_document
from planner.spec.yaml import decode_document

MAX_REQUEST_TOKENS = 8192  # assumed: a chat's; predictions without traffic.requests take half of it as the prompt


@dataclass(frozen=True)
class Traffic:
    """The input and output tokens of a day, as the user wrote them."""

    input_tokens: str
    output_tokens: str


@dataclass(frozen=True)
class Slo:
    """The promised mean latencies, as the user wrote them."""

    ttft_ms: str
    tpot_ms: str


@dataclass(frozen=True)
class Kubernetes:
    """The two values that only Kubernetes manifests need."""

    namespace: str
    image: str


@dataclass(frozen=True)
class Answers:
    """The answers to the questions of `init`; None for a question that can wait."""

    model: str
    gpu: str
    nodes: int
    gpus_per_node: int
    kubernetes: Kubernetes
    traffic: Traffic | None = None
    slo: Slo | None = None


def first_spec(answers: Answers, path: Path) -> str:
    """Return the text of the spec that will stand at `path`. Raises SpecError for answers that break a rule."""
    import jinja2  # imported late: no other command waits for it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "init"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 (YAML, not HTML; answers have forms that are plain in YAML, or are quoted)
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    model = MODELS[answers.model]
    text = environment.get_template("spec.yaml.j2").render(
        name=re.sub("[^a-z0-9]+", "-", answers.model),
        model=answers.model,
        gpu=answers.gpu,
        nodes=answers.nodes,
        gpus_per_node=answers.gpus_per_node,
        is_mixed=answers.nodes == 1,
        max_request_tokens=min(MAX_REQUEST_TOKENS, model.max_position_embeddings),
        kv_precision=model.only_kv,
        traffic=answers.traffic,
        slo=answers.slo,
        namespace=json.dumps(answers.kubernetes.namespace),
        image=json.dumps(answers.kubernetes.image),
    )
    check_document(decode_document(text.encode(), path))
    return text


def require_new(path: Path) -> None:
    """Raise CallError if `path` exists, and OutputError if no file can be written there."""
    if path.exists() or path.is_symlink():
        raise _existing(path)
    require_writable(path)


def write_new(path: Path, text: str) -> None:
    """Write `text` to a new file at `path`. Raises CallError if `path` exists by now."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise _existing(path) from None
    except OSError as error:
        rule, reason = "S904 must be a writable file", error.strerror or str(error)
        raise OutputError([Finding("", None, rule, reason, "choose another").at(str(path))]) from None


def _existing(path: Path) -> CallError:
    rule, reason = "S923 must be a new file", "it exists, and init overwrites nothing"
    return CallError([Finding("-o", str(path), rule, reason, "name another with -o").at("tidemill init")])

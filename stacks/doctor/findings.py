"""The obstacles between a plan and a cluster: one finding each, and all of them as text.

    blocks   `up` would fail, or wait until its deadline
    else     worth knowing: a spare that cannot stand in, or what nobody could look at

Which checks there are, and what each finds, is in `docs/doctor.md`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from planner.facts.quantities import counted

__all__ = ["Check", "Finding", "findings_json", "findings_lines", "plural", "split_sentence"]

Check = Literal[
    "rights",
    "kind",
    "webhook",
    "namespace",
    "owner",
    "object",
    "storage",
    "secret",
    "priority-class",
    "runtime-class",
    "queue",
    "network",
    "quota",
    "pod-security",
    "pod",
    "node",
    "taint",
    "device",
    "capacity",
    "occupied",
    "gateway",
    "image",
    "reach",
    "slow",
    "disk",
]


@dataclass(frozen=True)
class Finding:
    """One obstacle between the plan and the cluster, with a fix."""

    check: Check
    object: str  # kind and name of the object with the problem: `Node gpu-a01`
    reason: str
    fix: str
    blocks: bool = True


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as a JSON document. Unlike in the text, equal problems are not merged."""
    return {"findings": [asdict(each) for each in findings]}


def findings_lines(findings: Sequence[Finding], plan: str, context: str) -> list[str]:
    """Return the findings as lines for people, blocking ones first. Objects with the same problem share a line."""
    if not findings:
        return [f"{plan}: nothing in the cluster of context {context} stands in its way"]
    num_blocking = sum(each.blocks for each in findings)
    counts = f"{counted(len(findings), 'finding')}, of which {num_blocking} would stop `up`"
    return [f"{plan}, in the cluster of context {context}: {counts}", *_lines(findings)]


def split_sentence(sentence: str) -> tuple[str, str]:
    """Return an error's sentence (`kube/errors.py`) as (reason, fix)."""
    reason, _, fix = sentence.rpartition("; ")
    return (reason, fix) if reason else (fix, "remove what the server names, and repeat")


def plural(kind: str) -> str:
    """Return the plural of a kind, such as `Services` or `NetworkPolicies`."""
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    alike: dict[Finding, list[Finding]] = {}
    for each in findings:
        alike.setdefault(_hide_name(each), []).append(each)
    for nameless, members in sorted(alike.items(), key=lambda pair: not pair[0].blocks):
        said = members[0] if len(members) == 1 else nameless
        kind = "blocks" if said.blocks else "note"
        yield f"  {kind}  {said.check}  {_name_objects([each.object for each in members])}: {said.reason}; {said.fix}"


def _hide_name(finding: Finding) -> Finding:
    """Return a finding with NAME instead of its object's name, so that findings with the same problem are equal."""
    name = re.compile(rf"(?<![\w.-]){re.escape(finding.object.rpartition(' ')[2])}(?![\w.-])")
    return replace(finding, object="", reason=name.sub("NAME", finding.reason), fix=name.sub("NAME", finding.fix))


def _name_objects(objects: Sequence[str]) -> str:
    """Return the names of up to three objects, and the number of further ones."""
    shown, num_more = ", ".join(objects[:3]), len(objects) - 3
    return f"{shown} and {num_more} more" if num_more > 0 else shown

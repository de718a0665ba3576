"""Every rule in words: what it checks, its level and severity, an example of a message, the fields in its messages.

`tidemill explain RULE` and `docs/rules.md` are both made from this. `examples.json` has a message of each id and the
fields that messages with the id begin with; `python -m tests.docs` writes it from the cases of the tests.

An id stands for a kind of finding, so several checks may share an id.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from planner.problems.finding import Finding, Severity
from planner.rules.rule import Level
from planner.rules.table import rules_at
from planner.spec.declared import table_key

EXAMPLES = Path(__file__).with_name("examples.json")
LEVELS_ELSEWHERE = {  # level -> beginnings of the ids that are checked there without being in the table of rules
    "file": "S1",
    "fields": "S2",
    "resolved": "S3 S6",
    "call": "R S8 S9 S733 S753",
}
GROUPS = {
    "S1": "The file itself",
    "S2": "One field",
    "S3": "What a field names: files, models, GPUs",
    "S4": "Names, ports, nodes, volumes and GPUs of your own",
    "S5": "Layout, schedule, and what the phases must have in common",
    "S6": "Expert load, traffic and cost",
    "S7": "The spec is right, but the plan cannot be met or cannot be run (exit status 3)",
    "S8": "Sizes and options of `tidemill experts`",
    "S9": "The command line, and the files that it reads and writes",
    "R1": "What runs on this machine (exit status 1, or 2 for a wrong call)",
    "R2": "What `tidemill` reads from a cluster, or writes to it",
    "R3": "The configuration of a Pulumi stack",
    "R4": "Calls of `tidemill simulate` (exit status 2; 3 if speed cannot be predicted, 1 if a file cannot be written)",
    "R5": "Calls of `tidemill controller`, `hold` and `force` (exit status 2)",
    "R6": "Calls of `tidemill gitops` (exit status 2; 1 if git or a forge fails)",
    "W1": "Warnings: the spec is right, but probably not what was meant (exit status 0)",
}
# Ids that only earlier versions had. They are never used again, so that no id changes its meaning.
_RETIRED = """\
S110 S206 S207 S210 S211 S305 S306 S307 S309 S310 S311 S401 S403 S404 S406 S407 S409 S410 S412 S414 S415 S416 S417
S419 S431 S432 S440 S441 S445 S446 S447 S448 S449 S450 S451 S453 S454 S455 S456 S462 S464 S465 S466 S467 S468 S469
S470 S471 S473 S474 S475 S476 S477 S478 S486 S503 S511 S515 S517 S521 S522 S523 S524 S525 S526 S527 S530 S541 S542
S550 S551 S552 S553 S554 S556 S561 S601 S611 S612 S613 S614 S615 S618 S619 S620 S621 S622 S623 S624 S703 S704 S705
S706 S708 S731 S732 S747 S748 S749 S750 S752 S755 S756 S757 S759 S760 S762 S764 S765 S770 S771 S773 S808 S813 S814
S815 S816 S817 S818 S819 S821 S822 S823 S824 S825 S826 S827 S829 S830 S910 W102 W103 W104 W105 W109 W110 W114 W116
W117 W118 W119 W126 W127 W129 W130 W133 W139 W140 W141 W142 W143 W145 W146 W147 W148 W149 W150 W161 R409 R410"""
RETIRED = frozenset(_RETIRED.split())


@dataclass(frozen=True)
class RuleText:
    """What a user reads about a rule's id."""

    id: str
    group: str
    level: str
    severity: Severity
    checks: Sequence[str]  # what each check with this id does; empty for ids outside the table of rules
    example: str
    fields: Sequence[str]


@cache
def rules() -> Mapping[str, RuleText]:
    """Return rule id -> rule in words, group by group."""
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    ids = (each for group in GROUPS for each in examples if each.startswith(group))
    return {each: _describe(each, **examples[each]) for each in ids}


def rules_about(path: str) -> Sequence[str]:
    """Return the ids of rules with messages about the field at `path`, or about the same field of another phase.

    Rules that apply to every field (S2) are left out.
    """
    place = table_key(path)
    return [
        each.id for each in rules().values() if place in map(table_key, each.fields) and not each.id.startswith("S2")
    ]


def _describe(id: str, example: str, fields: Sequence[str]) -> RuleText:  # noqa: A002 (what a rule calls it)
    return RuleText(
        id=id,
        group=GROUPS[id[:2]],
        level=_first_level(id),
        severity=Finding("", None, id, "", "").severity,
        checks=tuple(dict.fromkeys(_describe_checks(id))),
        example=example,
        fields=fields,
    )


def _first_level(id: str) -> str:  # noqa: A002
    """Return the first level at which the table of rules has `id`, else the level at which it is checked elsewhere."""
    of_table = [level for level in get_args(Level) if any(id in each.ids.split() for each in rules_at(level))]
    elsewhere = [level for level, starts in LEVELS_ELSEWHERE.items() if id.startswith(tuple(starts.split()))]
    return next(iter([*of_table, *elsewhere]), "decided")


def _describe_checks(id: str) -> Iterator[str]:  # noqa: A002
    """Yield what each rule with `id` checks, from its `about` or the first paragraph of its check's docstring."""
    for level in get_args(Level):
        for rule in rules_at(level):
            if id in rule.ids.split():
                said = rule.about or rule.check.__doc__
                assert said, f"{rule.check.__name__} says nothing"
                yield re.sub(r"\s+", " ", said.partition("\n\n")[0]).strip()

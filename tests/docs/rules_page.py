"""`docs/rules.md`: every rule with its level, its severity and one message, out of the page that has all of them."""

from typing import get_args

from planner.problems.finding import Finding
from planner.rules.rule import Level
from planner.rules.table import rules_at
from tests.planner.spec.messages import first_messages
from tests.stacks.messages import LOCAL_MESSAGES

__all__ = ["rules_page"]

HEAD = """# The rules

<!-- Written by `python -m tests.docs`: change what it is made from. -->

A message has up to four parts, with semicolons between them: field and value with the rule, the reason, the nearest
fix. Programs find the id in `rule` ([errors as JSON](errors.md)). Each id is shown with one of its messages.

A level says which results the rule needs. An error at a level ends the check before the next.

| level | asks |
|---|---|
| file, call | the file as such, the command line |
| fields, resolved | whether values are right, by themselves and beside what names in the spec stand for |
| decided | whether `auto` can become a number |
| laid out | layouts and memory |
| placed | where units go |
| mapped | expert maps |
| rendered | what the spec's engine cannot run: it plans, and `render` and `up` refuse it |
| started | what pods would do, where the engine can run them |
| predicted | speed, beside what is promised and asked for |"""
COLUMNS = "| rule | level | severity | for example |\n|---|---|---|---|"
ELSEWHERE = {  # than in the table of rules
    "S1": "file",
    "S2": "fields",
    "S3": "resolved",
    "S6": "resolved",
    "S733": "call",
    "S753": "call",
    "S8": "call",
    "S9": "call",
    "R": "call",
}
# Ids that messages had once. An id keeps its meaning, so none of these comes back.
RETIRED = """\
S110 S206 S207 S210 S211 S305 S306 S307 S309 S310 S311 S401 S403 S404 S406 S407 S409 S410 S412 S414 S415 S416
S417 S419 S431 S432 S440 S441 S445 S446 S447 S448 S449 S450 S451 S453 S454 S455 S456 S462 S464 S465 S466 S467
S468 S469 S470 S471 S473 S474 S475 S476 S477 S478 S486 S503 S511 S515 S517 S521 S522 S524 S525 S526 S527 S530
S541 S542 S550 S551 S552 S553 S554 S556 S561 S601 S611 S612 S613 S614 S615 S620 S621 S622 S623 S703 S704 S705
S706 S708 S731 S732 S747 S748 S749 S750 S752 S755 S756 S757 S759 S760 S762 S765 S770 S771 S773 S813 S815 S818
S819 S821 S822 S823 S827 S829 S830 S910 W102 W103 W104 W105 W109 W110 W114 W116 W117 W118 W119 W126 W127 W129
W130 W133 W139 W140 W141 W142 W143 W145 W146 W147 W148 W149 W150 W161"""
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


def rules_page() -> str:
    """Every rule id with the first of its messages."""
    examples = first_messages() | first_messages(LOCAL_MESSAGES)
    parts = [HEAD]
    for prefix, title in GROUPS.items():
        rows = [_row(rule, message) for rule, message in examples.items() if rule.startswith(prefix)]
        parts.append(f"## {prefix}xx: {title}\n\n{COLUMNS}\n" + "\n".join(rows))
    assert not examples.keys() & set(RETIRED.split())
    parts.append(f"## Retired\n\nIds keep their meaning. These had one and are not used again:\n{RETIRED}.")
    return "\n\n".join(parts) + "\n"


def _row(rule, message):
    return f"| {rule} | {_level(rule)} | {Finding('', None, rule, '', '').severity} | {_cell(message)} |"


def _level(rule):
    """The first level at which the table has the rule, or where else it is found."""
    of_table = [level for level in get_args(Level) if any(rule in each.ids.split() for each in rules_at(level))]
    elsewhere = [ELSEWHERE[start] for start in (rule, rule[:2], rule[:1]) if start in ELSEWHERE]
    return next(iter([*of_table, *elsewhere]), "decided")


def _cell(text):
    """One line, whose bars end no cell."""
    return " ".join(text.split()).replace("|", r"\|")

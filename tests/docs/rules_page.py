"""`docs/rules.md`: every rule with its level, its severity and one message, as `tidemill explain` has them."""

import json
import re
import textwrap

from planner.guide.fields import field_paths
from planner.guide.rules import GROUPS, RETIRED, rules
from tests.planner.spec.messages import messages_by_rule
from tests.stacks.messages import LOCAL_MESSAGES

__all__ = ["examples_of_rules", "rules_page"]

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


def rules_page() -> str:
    """Every rule id with the first of its messages."""
    rules.cache_clear()
    parts = [HEAD]
    for prefix, title in GROUPS.items():
        rows = [_row(rule) for rule in rules().values() if rule.id.startswith(prefix)]
        parts.append(f"## {prefix}xx: {title}\n\n{COLUMNS}\n" + "\n".join(rows))
    parts.append(f"## Retired\n\nIds keep their meaning. These had one and are not used again:\n{_retired()}.")
    return "\n\n".join(parts) + "\n"


def examples_of_rules() -> str:
    """Return `planner/guide/examples.json`: of each rule its first message, and the fields its messages begin with."""
    found = messages_by_rule() | messages_by_rule(LOCAL_MESSAGES)
    assert not found.keys() & RETIRED
    entries = {rule: {"example": each[0], "fields": _fields_in(each)} for rule, each in found.items()}
    lines = (f"{json.dumps(rule)}: {json.dumps(entry, ensure_ascii=False)}" for rule, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _fields_in(messages):
    """The fields that messages begin with; items of a list are `[]`."""
    first = (re.sub(r"\.\d+(?=[. ]|$)", "[]", each.partition(" ")[0]) for each in messages)
    return [path for path in dict.fromkeys(first) if path in field_paths()]


def _row(rule):
    return f"| {rule.id} | {rule.level} | {rule.severity} | {_cell(rule.example)} |"


def _retired():
    return textwrap.fill(" ".join(sorted(RETIRED)), 109)


def _cell(text):
    """One line, whose bars end no cell."""
    return " ".join(text.split()).replace("|", r"\|")

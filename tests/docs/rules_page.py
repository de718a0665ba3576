"""`docs/rules.md`: every rule with one message, from the tests' wrong specs.

A rule whose case is no text there has its words from the source.
"""

import re
from pathlib import Path

import planner
from tests.planner.spec.wrong_specs import CASES

__all__ = ["rules_page"]

HEAD = """# The rules

<!-- Written by `python -m tests.docs`: change what it is made from. -->

A message has four parts: field and value, rule, reason, nearest fix. Programs find the id in `rule`
([errors as JSON](errors.md)). Each id is shown with one message that it has in the tests, or with its rule alone."""
COLUMNS = "| rule | for example |\n|---|---|"
RULE = re.compile(r'"([SW]\d{3}) ([^"]*)')
GROUPS = {
    "S1": "The file itself",
    "S2": "One field",
    "S3": "What a field names: files, models, GPUs",
    "S4": "Names, ports, nodes, volumes and GPUs of your own",
    "S5": "Layout, schedule, and what the phases must have in common",
    "S6": "Expert load",
    "S7": "Right, but cannot be had or cannot be run (exit status 3)",
    "S8": "Sizes and options of `tidemill experts`",
    "S9": "The command line, and the files that it reads and writes",
    "W1": "Warnings: right, and hardly meant (exit status 0)",
}


def rules_page() -> str:
    """Every rule id with one message; a rule whose case is no text in the tests has its words from the source."""
    examples = {rule: f"must {words}" for rule, words in _rules_in_source()}
    for group in reversed(CASES.values()):
        examples |= {case["rule"]: case["message"] for case in reversed(group) if "message" in case}
    parts = [HEAD]
    for prefix, title in GROUPS.items():
        rows = [f"| {rule} | {_cell(examples[rule])} |" for rule in sorted(examples) if rule.startswith(prefix)]
        parts.append(f"## {prefix}xx: {title}\n\n{COLUMNS}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _rules_in_source():
    """(id, words after `must`) of every rule that the planner's sources name."""
    for path in sorted(Path(planner.__file__).parent.rglob("*.py")):
        for rule, words in RULE.findall(path.read_text()):
            without_asides = re.sub(r" \(\{[^)]*\)", "", words)
            yield rule, re.sub(r"\{[^}]*\}", "...", without_asides).removeprefix("must ")


def _cell(text):
    """One line, whose bars end no cell."""
    return " ".join(text.split()).replace("|", r"\|")

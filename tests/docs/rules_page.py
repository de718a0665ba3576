"""`docs/rules.md`: every rule with one message, out of the page that has all of them."""

from tests.planner.spec.messages import first_messages
from tests.stacks.messages import LOCAL_MESSAGES

__all__ = ["rules_page"]

HEAD = """# The rules

<!-- Written by `python -m tests.docs`: change what it is made from. -->

A message has up to four parts, with semicolons between them: field and value with the rule, the reason, the nearest
fix. Programs find the id in `rule` ([errors as JSON](errors.md)). Each id is shown with one of its messages."""
COLUMNS = "| rule | for example |\n|---|---|"
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
    "R5": "Calls of `tidemill controller` (exit status 2)",
    "W1": "Warnings: the spec is right, but probably not what was meant (exit status 0)",
}


def rules_page() -> str:
    """Every rule id with the first of its messages."""
    examples = first_messages() | first_messages(LOCAL_MESSAGES)
    parts = [HEAD]
    for prefix, title in GROUPS.items():
        rows = [f"| {rule} | {_cell(message)} |" for rule, message in examples.items() if rule.startswith(prefix)]
        parts.append(f"## {prefix}xx: {title}\n\n{COLUMNS}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _cell(text):
    """One line, whose bars end no cell."""
    return " ".join(text.split()).replace("|", r"\|")

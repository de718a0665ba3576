"""The rules of `engine` and `split`.

What an engine cannot do is not asked here: such a spec is right, and cannot be met.
"""

from collections.abc import Iterator

from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName
from planner.problems.finding import Finding
from planner.problems.fix import nearest
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written

__all__ = ["RULES"]


def versions_are_known(c: Written) -> Iterator[Finding]:
    """The options of another version may have other names."""
    version: str | None = c["engine.version"]
    name: EngineName = c["engine.name"]
    known = ENGINES[name].versions
    if version is None or version in known:
        return
    if not known:
        yield without_effect(f"with engine {name}", "kubernetes.image decides the version", "engine.version", version)
        return
    rule = f"S540 must be {' or '.join(known)}"
    reason = f"tidemill knows the options of no other version of {name}"
    yield Finding("engine.version", version, rule, reason, nearest(*known))


def engines_choose_replicas(c: Written) -> Iterator[Finding]:
    """Maps are made for the replicas that tokens go to, and an engine that is not ours has a rule of its own."""
    split: str = c["split"]
    used = c.engine
    own = ENGINES[used].split if used else None
    if own is None or "split" not in c.sections or split == own:
        return
    reason = f"{used} chooses replicas by a rule of its own ({own})"
    yield without_effect(f"with engine {used}", reason, "split", split)


RULES = (
    Rule("S540 S560", "fields", versions_are_known),
    Rule("S560", "fields", engines_choose_replicas),
)

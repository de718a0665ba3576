"""The rules of engines other than ours; `layout_rules.py` asks them with the others.

What an engine cannot do is not asked here: such a spec is right, and `planner/engines` says why it cannot be met.
"""

from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName
from planner.problems.fix import nearest
from planner.spec.rule import Broken, Rule, declare_in, without_effect

__all__ = ["RULES"]

RULES: list[Rule] = []
_reads = declare_in(RULES)


@_reads("engine.version", "engine.name")
def versions_are_known(version: str | None, name: EngineName) -> Broken | None:
    """The options of another version may have other names."""
    known = ENGINES[name].versions
    if version is None or version in known:
        return None
    if not known:
        return without_effect(f"with engine {name}", "kubernetes.image decides the version", "engine.version", version)
    rule = f"S540 must be {' or '.join(known)}"
    return Broken(rule, f"tidemill knows the options of no other version of {name}", nearest(*known))


@_reads("split", "spec.sections", "engine?", "engine.name?")
def engines_choose_replicas(
    split: str, sections: frozenset[str], engine: EngineName | None, name: EngineName | None
) -> Broken | None:
    """Maps are made for the replicas that tokens go to, and an engine that is not ours has a rule of its own."""
    used = name or engine
    own = ENGINES[used].split if used else None
    if own is None or "split" not in sections or split == own:
        return None
    reason = f"{used} chooses replicas by a rule of its own ({own})"
    return without_effect(f"with engine {used}", reason, "split", split)

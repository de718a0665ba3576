"""The rules of `engine` and `split`.

What an engine cannot run is checked in `engine_limits.py`: such a spec is right but infeasible.
"""

from collections.abc import Iterator

from planner.facts.engines import ENGINES
from planner.facts.terms import EngineName
from planner.problems.finding import Finding
from planner.problems.fix import nearest
from planner.rules.rule import Rule, without_effect
from planner.rules.written import Written

__all__ = ["RULES"]


def engine_version_is_known(c: Written) -> Iterator[Finding]:
    """Reject unknown versions of an engine: their options may have other names."""
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


def split_matches_engine(c: Written) -> Iterator[Finding]:
    """Reject a `split` that differs from the engine's own: other engines choose replicas by a fixed rule."""
    split: str = c["split"]
    used = c.engine
    own = ENGINES[used].split if used else None
    if own is None or "split" not in c.sections or split == own:
        return
    reason = f"{used} chooses replicas by a rule of its own ({own})"
    yield without_effect(f"with engine {used}", reason, "split", split)


RULES = (
    Rule("S540 S560", "fields", engine_version_is_known),
    Rule("S560", "fields", split_matches_engine),
)

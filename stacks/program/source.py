"""What a deployment is made from: a spec, which is planned, or a plan, which is deployed as it is.

    spec       a spec                               previous   the plan that the spec's plan stays near
    overlays   changes to the spec, in this order   plan       a plan, instead of the spec

Each is a path, or the content itself, as a program makes it. Paths are absolute, or from the program's folder; so are
those of files that a spec names if it is given as text.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from planner.compiler import Compiled, plan_from, run_passes
from planner.diff.figures import compute_figures
from planner.diff.pair import Pair
from planner.plan.load import load_plan, read_plan
from planner.plan.plan import Plan
from planner.plan.user_input import read_input
from planner.problems.errors import CallError
from planner.problems.finding import Finding
from planner.spec.resolved import ResolvedSpec
from stacks.kube.connection import is_content
from stacks.program.plan_objects import PlanObjects, plan_objects

__all__ = ["FIELDS", "Source"]

FIELDS = ("spec", "overlays", "previous", "plan")


@dataclass(frozen=True)
class Source:
    """The spec or the plan that a deployment is made from.

    An empty text, the default of Pulumi's settings, counts as None.
    """

    spec: str | None = None
    overlays: tuple[str, ...] = ()
    previous: str | None = None
    plan: str | None = None
    is_secret: bool = False  # then no manifest may be readable in Pulumi's state

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, is_secret: bool = False) -> "Source":
        """Return the source in a component's inputs or a stack's settings. Other keys of `values` are ignored.

        `is_secret` says that the source holds secrets. Raises CallError if a value is not a text.
        """
        overlays = values.get("overlays") or []
        given = {each: values[each] for each in FIELDS if each != "overlays" and values.get(each)}
        texts = given | {f"overlays[{place}]": each for place, each in enumerate(_as_list(overlays))}
        for name, each in texts.items():
            if not isinstance(each, str) or not each:
                raise _wrong("R303 must be a path or the content", "it is no text", "write it as text", name, each)
        return cls(**given, overlays=tuple(overlays), is_secret=is_secret)

    @cached_property
    def deployed(self) -> Plan:
        """The plan to deploy.

        Raises CallError if there is neither spec nor plan, or both. Raises SpecError or InfeasibleError if the one
        given is wrong.
        """
        found = self._compiled
        if isinstance(found, Plan):
            return found
        return found.deployed if self._previous_plan is None else found.deployed_with_demand

    @cached_property
    def objects(self) -> PlanObjects:
        """The objects of the plan to deploy. Raises InfeasibleError if the bundled runtime cannot run the plan."""
        return plan_objects(self.deployed)

    @property
    def verdict(self) -> str:
        """The verdict on the change from the previous plan: what `pulumi up` does to serving units.

        It is `not_compared` if there is no previous plan, or if that plan cannot run.
        """
        if self._previous_plan is None or not self._previous_plan.runnable:
            return "not_compared"
        lender = self._compiled.resolved if isinstance(self._compiled, Compiled) else None
        before, _ = compute_figures(self._previous_plan, "before the change", lender)
        return Pair.of(before, self._compiled, self.deployed).compare().ways["pulumi"].verdict

    @cached_property
    def _compiled(self) -> Compiled | Plan:
        match self.spec or None, self.plan or None:
            case str() as spec, None:
                return run_passes(_read_spec(spec, self.overlays), self._previous_plan)
            case None, str() if self.previous or self.overlays:
                rule = f"R302 {'previous' if self.previous else 'overlays'} must come with spec"
                raise _wrong(rule, "a plan is not planned again", "leave it out, or give the spec")
            case None, str() as plan:
                return _read_deployed_plan(plan)
        found = "both are set" if self.spec else "neither is set"
        raise _wrong("R301 exactly one of spec and plan must be set", found, "set spec to a spec, or plan to a plan")

    @cached_property
    def _previous_plan(self) -> Plan | None:
        return _read_plan("previous", self.previous) if self.previous else None


def _as_list(overlays: Any) -> list[Any]:
    if isinstance(overlays, list | tuple):
        return list(overlays)
    raise _wrong("R304 must be a list", "overlays apply one after the other", "write [prod.yaml]", "overlays", overlays)


def _read_spec(spec: str, overlays: Sequence[str]) -> ResolvedSpec:
    """Return the spec with its overlays. Raises CallError if `spec` is a plan."""
    path, contents = _path_and_content("spec", spec)
    others = [_path_and_content(f"overlays[{place}]", each) for place, each in enumerate(overlays)]
    texts = contents | {place: text for _, inner in others for place, text in inner.items()}
    found = read_input(path, [each for each, _ in others], texts)
    if isinstance(found, ResolvedSpec):
        return found
    reason = "it is a finished plan, which is deployed as it is"
    raise _wrong("R306 must be a spec", reason, "set plan to it instead, and neither previous nor overlays", "spec")


def _path_and_content(name: str, given: str) -> tuple[Path, dict[Path, bytes]]:
    """Return (path, {path: content}) for an input that is either a file's path or its text.

    If `given` is a path, the mapping is empty and nothing is read. If it is the text, the path is `name` and the
    mapping holds the text.
    """
    return (Path(name), {Path(name): _encode(given)}) if is_content(given) else (_existing_path(name, given), {})


def _read_deployed_plan(plan: str) -> Plan:
    """Return the plan of a plan file or of an unedited rendered folder. Raises CallError if it is a spec."""
    is_folder = not is_content(plan) and _existing_path("plan", plan).is_dir()
    return plan_from(Path(plan)) if is_folder else _read_plan("plan", plan)


def _read_plan(name: str, given: str) -> Plan:
    return load_plan(_encode(given), Path(name)) if is_content(given) else read_plan(_existing_path(name, given))


def _existing_path(name: str, given: str) -> Path:
    """Return `given` as a path.

    Raises CallError if no file is there. The error does not show `given`, which may be content with secrets.
    """
    if os.path.exists(given):
        return Path(given)
    fix = "give a path that is absolute or from the program's folder, or content in more than one line"
    raise _wrong("R305 must be a path or the content", "no file has that name", fix, name)


def _encode(content: str) -> bytes:
    return content.encode(errors="surrogatepass")  # what reads it refuses half a character


def _wrong(rule: str, reason: str, fix: str, field: str = "", value: Any = None) -> CallError:
    return CallError([Finding(field, value, rule, reason, fix).at("tidemill:Deployment")])

"""The planner's commands: validate, plan, report, diff, render.

`planner/guide` has explain, schema and init, `planner/accuracy` has accuracy, `planner/experts` has experts.

`stacks/cli.py` adds only the command that is called: one of these, or one of its own. What all commands share is in
`planner/command`.

This file prints results and decides nothing. What only one command needs is imported inside that command, so that the
others do not wait for it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from planner.accuracy.cli import add_accuracy
from planner.command.options import (
    add_color,
    add_command,
    add_format,
    add_overlays,
    add_previous,
    add_spec,
    add_spec_or_plan,
)
from planner.command.printed import (
    print_colored,
    print_json,
    print_line,
    require_output,
    say,
    show_progress,
    warn,
    write_result,
)
from planner.command.run import new_parser, run
from planner.experts.cli import add_experts
from planner.facts.digest import pretty_json
from planner.facts.quantities import first_of
from planner.guide.cli import add_explain, add_init, add_schema
from planner.plan.fit import Fit, check_fit
from planner.plan.user_input import named_files, read_spec
from planner.problems.errors import CallError, InfeasibleError, SpecError, TidemillError

if TYPE_CHECKING:
    from planner.compiler import Compiled
    from planner.diff.change import Change
    from planner.facts.map_files import Engine
    from planner.facts.terms import Phase
    from planner.plan.plan import Plan
    from planner.spec.resolved import ResolvedSpec

# ids of the sections of a plan's page that have figures; the page itself takes half a second to import
CHARTS = ("nodes", "day", "published", "speed", "cost", "memory", "experts", "stages", "kv")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the planner's commands and return its exit status. The commands of `stacks` are not among them."""
    parser = new_parser("Plan DeepSeek-class mixture-of-experts deployments.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        add_init,
        add_explain,
        add_validate,
        add_schema,
        add_plan,
        add_report,
        add_diff,
        add_experts,
        add_render,
        add_accuracy,
    ):
        add(commands)
    return run(parser, argv)


def add_validate(commands: Any) -> None:
    """Add the command `validate` to `commands`, the result of `add_subparsers`."""
    validate = add_command(
        commands,
        "validate",
        "find every mistake in specs",
        "Check specs against all rules, and check that units fit into the memory of their GPUs. Nothing is placed.",
    )
    validate.add_argument("specs", nargs="+", type=Path, metavar="SPEC", help="one or more YAML files")
    add_overlays(validate)
    add_format(validate)
    validate.set_defaults(command=_validate)


def add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    from planner.facts.map_files import Engine

    plan = add_command(
        commands,
        "plan",
        "compile a spec into a plan, and show it",
        "Compile a spec into a plan: layouts, memory, units on nodes, expert maps, links, failures, the day's states.",
    )
    add_spec(plan)
    plan.add_argument("-o", dest="output", type=Path, metavar="FILE", help="write the plan's JSON here as well")
    plan.add_argument(
        "--export",
        choices=get_args(Engine),
        help="write each phase's expert map beside -o, in a file that this engine reads",
    )
    add_previous(plan)
    plan.add_argument(
        "--calibration", type=Path, metavar="FILE", help="your own measurements, in JSON, which correct predictions"
    )
    plan.add_argument(
        "--full", action="store_true", help="show every table, every default and every unit with its nodes"
    )
    plan.add_argument("--unit", metavar="NAME", help="show one unit with each of its nodes and the ranks there")
    plan.add_argument(
        "--explain", action="store_true", help="also show the stages of a layer, as a table and a timeline"
    )
    add_color(plan)
    add_format(plan)
    plan.set_defaults(command=_plan)


def add_report(commands: Any) -> None:
    """Add the command `report`."""
    report = add_command(
        commands,
        "report",
        "draw a plan on one page, for a browser",
        "Write a plan as one HTML page that needs no network: nodes by rack and hour, the day, speed, cost, memory, "
        "experts, and every figure with where it comes from. A spec is planned first. As PNG or SVG it is a picture of "
        "one chart or of all, for a pull request or a chat.",
    )
    add_spec_or_plan(report)
    report.add_argument(
        "--previous",
        type=Path,
        metavar="PLAN.json",
        help="an earlier plan, spec or rendered folder: the page begins with what the change does, and each figure "
        "stands beside the earlier one; a spec is planned near it",
    )
    report.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", help="the file to write; default: the given file's name, here"
    )
    report.add_argument(
        "--chart",
        choices=CHARTS,
        help="the chart to draw as PNG or SVG; default: all of them",
    )
    add_format(report, "png", "svg")
    report.set_defaults(command=_report)


def add_diff(commands: Any) -> None:
    """Add the command `diff`."""
    diff = add_command(
        commands,
        "diff",
        "say what the change from one plan to another does",
        "Compare two plans: which pods end and why, how long that takes and what still serves meanwhile, which experts "
        "and nodes change, and what becomes of cost and speed. A spec is planned first, NEW near OLD.",
    )
    for name, which in (("old", "before"), ("new", "after")):
        diff.add_argument(
            name, type=Path, metavar=name.upper(), help=f"a spec, a plan or a rendered folder: what is deployed {which}"
        )
    add_overlays(diff)
    add_format(diff, "markdown")
    diff.set_defaults(command=_diff)


def add_render(commands: Any) -> None:
    """Add the command `render`."""
    render = add_command(
        commands,
        "render",
        "write a plan's Kubernetes manifests",
        "Write the Kubernetes manifests of a plan, one object per file, with the launch files of its units. "
        "A spec is compiled first, near the plan that DIR keeps; a plan is rendered as it stands.",
    )
    add_spec_or_plan(render)
    add_previous(render)
    render.add_argument("-o", dest="output", type=Path, metavar="DIR", required=True, help="the folder to write")
    render.add_argument(
        "--anew",
        action="store_true",
        help="do not plan near the plan that DIR keeps, and replace that plan whatever its name",
    )
    add_format(render)
    render.set_defaults(command=_render)


def _validate(arguments: argparse.Namespace) -> None:
    errors: list[TidemillError] = []
    fits: dict[Path, Fit] = {}
    with show_progress("checking") as report:
        for number, path in enumerate(arguments.specs):
            report(str(path), number / len(arguments.specs))
            try:
                fits[path] = check_fit(read_spec(path, arguments.overlays))
            except (SpecError, InfeasibleError) as error:
                errors.append(error)
    if arguments.format == "text":
        _print_fits(fits, arguments.overlays)
    if errors:
        kind = SpecError if any(isinstance(error, SpecError) for error in errors) else InfeasibleError
        raise kind([finding for error in errors for finding in error.findings])
    if arguments.format == "json":
        told = {
            "left_to_plan": [finding.as_json() for fit in fits.values() for finding in fit.left_to_plan],
            "left_to_render": [finding.as_json() for fit in fits.values() for finding in fit.left_to_render],
            "warnings": [finding.as_json() for fit in fits.values() for finding in fit.warnings],
        }
        print_json({"valid": True, "errors": []} | {key: findings for key, findings in told.items() if findings})


def _print_fits(fits: Mapping[Path, Fit], overlays: Sequence[Path]) -> None:
    """Print for each spec that it is valid, what `plan` and `render` may still refuse in it, and its warnings."""
    for path, fit in fits.items():
        left = [f"left to plan: {finding}" for finding in fit.left_to_plan]
        left += [f"left to render, which refuses it: {finding}" for finding in fit.left_to_render]
        files = " -f ".join(map(str, (path, *overlays)))
        for line in (f"{files}: valid", *left, *(f"warning: {finding}" for finding in fit.warnings)):
            print_line(line)


def _plan(arguments: argparse.Namespace) -> None:
    from planner.compiler import run_passes
    from planner.estimate.throughput.calibration import read_calibration
    from planner.facts.map_files import missing_output
    from planner.report.text import ALARMS, plan_text
    from planner.report.timeline import explain_layers

    if arguments.export and not arguments.output:
        raise CallError([missing_output(arguments.export, "the plan", "plan.json").at("tidemill plan")])
    calibration = read_calibration(arguments.calibration) if arguments.calibration else None
    spec = read_spec(arguments.spec, arguments.overlays)
    previous, notes = _read_previous(arguments.previous, spec) if arguments.previous else (None, ())
    if arguments.output:
        _require_plan_outputs(arguments, spec, previous)
    with show_progress(f"planning {arguments.spec}"):
        found = run_passes(spec, previous, calibration)
        plan = found.plan
        change = _compare(arguments.previous, previous, found, notes) if previous else None
    if arguments.output:
        write_result(arguments.output, pretty_json(plan.as_json()))
    if arguments.export:
        _export_maps(plan, arguments.export, arguments.output)
    if arguments.unit:
        _print_unit(plan, arguments)
    elif arguments.format == "json":
        print_json((plan if change is None else plan.with_diff(change.as_json())).as_json())
    else:
        print_colored(plan_text(plan, full=arguments.full), arguments.color, red=ALARMS)
        if change is not None:
            _print_change(change)
        if arguments.explain:
            print(f"\n{explain_layers(found.speed)}")


def _require_plan_outputs(arguments: argparse.Namespace, spec: "ResolvedSpec", previous: "Plan | None") -> None:
    """Require that -o, and each map of --export, may be written and is no input."""
    given = [(arguments.previous, previous)] if previous else []
    files = named_files((arguments.spec, spec), *given)
    maps = [_map_file(arguments.output, phase, arguments.export) for phase in spec.phases if arguments.export]
    require_output(arguments.output, arguments, files)
    for path in maps:
        require_output(path, arguments, files, form=None)


def _read_previous(path: Path, spec: "ResolvedSpec") -> tuple["Plan", tuple[str, ...]]:
    """Return the plan at `path` with its figures computed anew, and notes on these."""
    from planner.diff.figures import compute_figures
    from planner.plan.load import read_plan

    return compute_figures(read_plan(path), "before the change", spec)


def _compare(path: Path, previous: "Plan", found: "Compiled", notes: Sequence[str]) -> "Change | None":
    """Return what the change from the plan `previous` to `found` does; None unless their engines can run both plans.

    `previous` was read from `path`, with `notes` on its figures.
    """
    from planner.diff.pair import Pair
    from planner.diff.read import refuse_contradictions

    if not (previous.runnable and found.plan.runnable):
        return None
    with refuse_contradictions(path):
        return Pair.of(previous, found, on_figures=notes).compare()


def _print_change(change: "Change") -> None:
    from planner.diff.text import diff_text

    print(f"\n{diff_text(change)}", end="")


def _print_unit(plan: "Plan", arguments: argparse.Namespace) -> None:
    from planner.report.text import find_unit, unit_text

    unit = find_unit(plan, arguments.unit)
    if arguments.format == "json":
        print_json(next(each for each in plan.as_json()["units"] if each["name"] == unit.name))
    else:
        print(unit_text(unit), end="")


def _report(arguments: argparse.Namespace) -> None:
    from planner.diff.read import read_to_show, refuse_contradictions
    from planner.diff.wording import topics
    from planner.report.page.page import plan_page
    from planner.report.picture import draw_picture, require_pictures

    picture = arguments.format if arguments.format in ("png", "svg") else None
    require_pictures(picture, arguments.chart)
    require = partial(require_output, form=picture or "html", or_else=", or give the --format of that ending")
    if arguments.output:
        require(arguments.output, arguments)
    files = list[Path]()

    def check_files(named: Sequence[Path]) -> None:
        files.extend(named)
        if arguments.output:
            require(arguments.output, arguments, files)

    given = (arguments.given, arguments.previous)
    with show_progress(f"planning {arguments.given}"), refuse_contradictions(*given):
        pair, plan, notes = read_to_show(arguments.given, arguments.previous, arguments.overlays, check_files)
        before = pair.judged if pair else None
        if picture:
            content: str | bytes = draw_picture(plan, before, picture, arguments.chart, notes)
        else:
            change = pair.compare() if pair and pair.before.runnable and plan.runnable else None
            effects = [(each.name, each.lines) for each in topics(change)] if change else ()
            content = plan_page(plan, before, effects, notes=() if change else notes)
    stem = "-".join(filter(None, (arguments.given.stem, arguments.chart)))  # a stranger's plan may be called index
    output = arguments.output or Path(f"{stem}.{picture or 'html'}")
    require(output, arguments, files)
    write_result(output, content)
    if arguments.format == "json":
        print_json({"plan_digest": plan.digest, "file": str(output)})
    else:
        print_line(f"{output}: {'a picture' if picture else 'the page'} of plan {plan.name}, {plan.digest}")


def _diff(arguments: argparse.Namespace) -> None:
    from planner.diff.markdown import diff_markdown
    from planner.diff.read import read_pair, refuse_contradictions
    from planner.diff.text import diff_text

    given = arguments.old, arguments.new
    with show_progress(f"comparing {arguments.old} with {arguments.new}"), refuse_contradictions(*given):
        change = read_pair(arguments.old, arguments.new, arguments.overlays).compare()
    if arguments.format == "json":
        print_json(change.as_json())
    else:
        print({"text": diff_text, "markdown": diff_markdown}[arguments.format](change), end="")


def _export_maps(plan: "Plan", engine: "Engine", output: Path) -> None:
    """Write each phase's expert map to a file beside `output`: `plan.decode.sglang.json` beside `plan.json`."""
    from planner.facts.map_files import export_map

    for phase, sha256 in plan.map_digests.items():
        path = _map_file(output, phase, engine)
        rows = plan.expert_maps[sha256].physical_to_logical
        write_result(path, export_map(engine, rows, plan.phases[phase].ep_size, plan.model.num_dense_layers))
        say(f"{path}: the expert map of {phase} for {engine}")


def _map_file(output: Path, phase: "Phase", engine: "Engine") -> Path:
    from planner.facts.map_files import FILE_TYPES

    return output.with_name(f"{output.stem}.{phase}.{engine}.{FILE_TYPES[engine]}")


def _render(arguments: argparse.Namespace) -> None:
    from planner.compiler import compile_or_load
    from planner.diff.pair import Pair
    from planner.diff.wording import verdicts
    from planner.manifests.folder import (
        files_of,
        find_edits,
        kept_plan,
        require_same_name,
        stale_files,
        write_folder,
    )
    from planner.plan.plan import Plan
    from planner.problems.finding import warnings_json

    standing = None
    with suppress(CallError) if arguments.anew else nullcontext():  # a plan that cannot be read is replaced by --anew
        standing = kept_plan(arguments.output)
    kept = None if arguments.anew else standing
    with show_progress(f"rendering {arguments.given}"):
        found = compile_or_load(arguments.given, arguments.previous, kept, arguments.overlays)
        plan = found if isinstance(found, Plan) else found.deployed_with_demand if standing else found.deployed
        require_same_name(arguments.output, kept, plan)
        files = files_of(plan, kept)
        edits = find_edits(arguments.output, standing) if standing else {}
        pair = Pair.of(standing, found, plan, edits=edits) if standing and standing.runnable else None
        change = pair.compare(files) if pair else None
    altered = tuple(name for name, text in edits.items() if text not in (None, files.get(name)))
    differing = stale_files(arguments.output, files)
    write_folder(arguments.output, files)
    warn(plan.warnings)
    if altered:
        say(f"replaced files that were edited, merged or of another version: {first_of(altered)}")
    if arguments.format == "json":
        told = {
            "plan_digest": plan.digest,
            "folder": str(arguments.output),
            "files": sorted(files),
            "changed": list(differing),
        }
        print_json(told | warnings_json(plan.warnings) | ({"diff": change.as_json()} if change else {}))
    else:
        changed = f"{len(differing)} changed" if differing else "unchanged"
        lines = [f"{arguments.output}: {len(files)} files of plan {plan.digest}, {changed}"]
        lines += verdicts(change) if change else ()
        for line in lines:
            print_line(line)


if __name__ == "__main__":
    sys.exit(main())

"""The `tidemill` command: the planner's commands, and those that run something on this machine.

    up, down, status        a plan as processes here
    key                     an API key for its gateway
    experts --from          the loads that running ranks have recorded, for the next plan
    doctor                  a cluster as it is against a plan
    controller              units in a cluster that follow the plan's day
    simulate                a day of a spec's traffic over its plan
    generate, checkpoint    the runtime's own commands: a checkpoint offline, and its manifest

This file prints and decides nothing; `planner/cli.py` says how results and mistakes are reported.
"""

import argparse
import io
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from planner.cli import (
    add_command,
    add_commands,
    add_format,
    add_given,
    add_previous,
    new_parser,
    print_json,
    reported,
    run,
    wants_json,
    warn,
)
from planner.compiler import deployable_from
from planner.plan.deployable import Deployable
from planner.plan.given import read_given
from planner.problems.errors import CallError, SpecError, Violation
from planner.problems.printable import printable
from planner.problems.warned import warnings_json
from planner.schedule.schedule import ALL_STAY_ON, NOT_EXECUTED
from planner.spec.check import ResolvedSpec
from stacks.controller.cli import add_controller
from stacks.doctor.cli import add_doctor
from stacks.live.cli import add_recorded, asks_ranks
from stacks.local.api_key import new_key
from stacks.local.cli import day_line, play_day, record_json, say_day, stay
from stacks.local.deployment import (
    find_running,
    follow,
    plan_day,
    require_cpu,
    require_keys,
    require_no_day,
    require_runtime,
    running_names,
    start,
    stop,
)
from stacks.local.errors import LocalError
from stacks.local.played_day import read_length
from stacks.local.record import Record, RunFolder
from stacks.simulator.cli import add_simulate

__all__ = ["main"]

DEMO = Path(__file__).parent / "specs" / "demo.yaml"
WATCH_S = 1.0
NOTHING: dict[str, Any] = {"endpoint": None, "plan_digest": None, "units": []}
TRY_BODY = {"prompt": "Return a list of", "max_tokens": 32, "temperature": 0}


def main(argv: Sequence[str] | None = None) -> int:
    """The console script; its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["generate"], ["checkpoint"]):  # the runtime's own: one parser, one help text
        return reported(lambda: _run_in_runtime(words), words)
    parser = new_parser("Plan and run DeepSeek-class mixture-of-experts inference.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    if asks_ranks(words):
        add_recorded(commands)
        return run(parser, words)
    add_commands(commands)
    _add_local_commands(commands)
    add_doctor(commands)
    add_controller(commands)
    add_simulate(commands)
    return run(parser, words)


def _add_local_commands(commands: Any) -> None:
    up = add_command(
        commands,
        "up",
        "run a plan on this machine",
        "Start every unit of a plan and its gateway as processes here, and say where the gateway answers.",
    )
    add_given(up, default="the bundled demo")
    add_previous(up)
    up.add_argument("--detach", action="store_true", help="return when the endpoint answers, and leave it running")
    up.add_argument("--keys", type=Path, metavar="FILE", help="API keys that may ask, as JSON; default: anybody may")
    up.add_argument(
        "--day",
        metavar="DURATION",
        help="play the schedule's day in this time, such as 5min: units come and go; without it, all stay on",
    )
    up.add_argument("--host", default="127.0.0.1", help="loopback address of the gateway; nodes take the ones above it")
    up.set_defaults(command=_up)

    down = add_command(commands, "down", "stop what `up` started", "Stop every process of a deployment here.")
    down.set_defaults(command=_down)

    status = add_command(
        commands,
        "status",
        "show what runs on this machine, or in a cluster",
        "Show the units of a deployment and their states. A unit on this machine that has failed makes it exit with 1.",
    )
    status.add_argument("--context", metavar="NAME", help="a context of the kubeconfig: show the units there")
    status.add_argument("--watch", action="store_true", help="show them again whenever something changes")
    status.set_defaults(command=_status)

    key = add_command(
        commands,
        "key",
        "make an API key for the gateway",
        "Make an API key and its entry for the gateway's file of keys. The key is shown this once and kept nowhere.",
    )
    key.add_argument("--name", default="default", help="whose key it is, in logs and in the file of keys")
    add_format(key)
    key.set_defaults(command=_key)

    for command in (down, status):
        add_given(command, default="whatever runs", metavar="SPEC|PLAN.json|NAME")
    for command in (up, down, status):
        add_format(command)
    commands.add_parser("generate", help="generate text from a checkpoint, offline", add_help=False)
    commands.add_parser("checkpoint", help="compute the digests of a checkpoint", add_help=False)


def _up(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    length_s = read_length(arguments.day) if arguments.day is not None else None
    plan = deployable_from(arguments.given or DEMO, arguments.previous)
    plan.require_local()
    require_cpu(plan, arguments.given or DEMO)
    require_keys(plan, arguments.keys)
    day = plan_day(plan, length_s) if length_s is not None else None
    warn(plan.warnings)
    running = _same_plan_running(plan)
    if running is not None:
        require_no_day(day, running)
        _say(f"{running.name} is already running here with this plan (supervisor: process {running.supervisor})")
        _say_up(running, plan, arguments)
        return 0
    planned = time.monotonic() - began
    folder = start(plan, arguments.host, detached=arguments.detach, keys=arguments.keys, day=day)
    with suppress(KeyboardInterrupt):
        record = _wait_until_ready(folder)
        _say_ready(record, planned, time.monotonic() - began)
        _say_up(record, plan, arguments)
        if arguments.detach:
            return 0
        (stay if day is None else play_day)(folder)
    return _end(folder, has_json=arguments.format == "json")


def _end(folder: RunFolder, *, has_json: bool) -> int:
    """Stop what still runs, and say how the day went, if one was played. Return the exit status."""
    if folder.is_running():
        _say("stopping")
    stop(folder)
    record = folder.read()
    if record is None or record.day is None or record.day.began is None:
        return 0
    with redirect_stdout(sys.stderr if has_json else sys.stdout):  # the document was printed when all was ready
        return say_day(record.day)


def _key(arguments: argparse.Namespace) -> None:
    made = new_key()
    if arguments.format == "json":
        print_json(asdict(made))
        return
    print(f"key: {made.key}")
    print(f"entry: {json.dumps({'name': arguments.name, 'hash': made.hash})}")


def _same_plan_running(plan: Deployable) -> Record | None:
    folder = find_running(plan.name)
    record = folder.read() if folder else None
    if record is not None and record.plan_digest != plan.digest:
        raise LocalError(
            f"R107 {plan.name} is already running here with another plan",
            f"running {record.plan_digest}, this one is {plan.digest}",
            f"stop it first: tidemill down {plan.name}",
        )
    return record


def _wait_until_ready(folder: RunFolder) -> Record:
    from rich.console import Console  # 20 ms, which every command would wait

    from stacks.local.progress import UpProgress

    with UpProgress(Console(stderr=True)) as progress:
        for record in follow(folder):
            progress.show(record)
            if record.is_ready:
                return record
    raise LocalError(
        f"R108 {folder.name} was stopped before it was ready", "another process stopped it", "start it again"
    )


def _say_ready(record: Record, planned: float, total: float) -> None:
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in _stage_seconds(record, planned))
    _say(f"ready in {total:.1f} s ({stages})")


def _say_up(record: Record, plan: Deployable, arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        print_json(record_json(record) | warnings_json(plan.warnings))
        return
    print(f"endpoint: {record.endpoint}")
    print(f"plan: {record.plan_digest}")
    print(f"try: {_curl(record, with_key=arguments.keys is not None)}", flush=True)


def _stage_seconds(record: Record, planned: float) -> list[tuple[str, float]]:
    """Each stage's own seconds, from the moments at which stages were reached."""
    names = {"gateway": "gateway", "loading": "processes", "joining": "loading", "ready": "joining"}
    seconds, previous = [("planning", planned)], 0.0
    for reached, moment in sorted(record.stages.items(), key=lambda stage: stage[1]):
        seconds.append((names[reached], moment - previous))
        previous = moment
    return seconds


def _down(arguments: argparse.Namespace) -> None:
    folder = _find(arguments.given)
    if folder is not None:
        stop(folder)
    if arguments.format == "json":
        print_json({"stopped": folder.name if folder else None})
    else:
        print(f"{folder.name} is stopped" if folder else _nothing_runs())
        if folder is not None:
            _say(f"its logs are in {folder.path}")


def _status(arguments: argparse.Namespace) -> int:
    """Show the units, with --watch whenever that changes."""
    if not arguments.watch:
        return _status_now(arguments)
    if arguments.format == "json":
        reason, fix = "--watch prints more than one document", "leave out --watch or --format json"
        raise CallError([Violation("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    last, status = None, 0
    with suppress(KeyboardInterrupt):
        while True:
            with redirect_stdout(io.StringIO()) as said:
                status = _status_now(arguments)
            if said.getvalue() != last:
                last = said.getvalue()
                print(last, flush=True)
            time.sleep(WATCH_S)
    return status


def _status_now(arguments: argparse.Namespace) -> int:
    """Show the units. The exit status says whether one of those on this machine has failed."""
    if arguments.context is not None:
        _cluster_status(arguments)
        return 0
    folder = _find(arguments.given)
    record = folder.read() if folder else None
    if arguments.format == "json":
        print_json(record_json(record) if record else NOTHING)
    elif record is None:
        print(_nothing_runs())
    else:
        print(f"{record.name}: {record.endpoint}, plan {record.plan_digest}")
        if record.day is not None:
            print(f"  {day_line(record.day)}")
        if record.gateway_failure is not None:
            print("  gateway  failed" + _because(record.gateway_failure))
        for unit in record.units:
            print(f"  {unit.name}  {unit.phase}  {unit.ranks} ranks  {unit.state}" + _because(unit.reason))
    if record is not None and record.switches_units:
        _say(ALL_STAY_ON)
    return 1 if record is not None and record.has_failed else 0


def _cluster_status(arguments: argparse.Namespace) -> None:
    from stacks.live.status import ask_cluster  # loads the Kubernetes client, which nothing else here needs

    plan = deployable_from(arguments.given or DEMO)
    live = ask_cluster(plan, arguments.context)
    if live.plan_digest not in (None, plan.digest):
        _say(f"the cluster has another plan, {live.plan_digest}; this one is {plan.digest}")
    if live.unseen:
        _say(f"the nodes could not be read: {live.unseen}")
    if plan.switches_units and plan.kubernetes.controller is None:
        _say(NOT_EXECUTED)
    if arguments.format == "json":
        units = [{key: value for key, value in asdict(unit).items() if value is not None} for unit in live.units]
        print_json({"endpoint": live.endpoint, "plan_digest": live.plan_digest, "units": units})
        return
    print(f"{plan.name}: {live.endpoint}, plan {live.plan_digest or 'not applied'}")
    for unit in live.units:
        where = "".join(f", on spare {each.node} for {each.for_node}" for each in unit.stand_ins or ())
        print(f"  {unit.name}  {unit.phase}  {unit.ranks} ranks  {unit.state}{where}" + _because(unit.reason))


def _find(given: Path | None) -> RunFolder | None:
    """What runs of the spec or plan `given`, or under that name; without it, the only deployment that runs."""
    return find_running(_name_of(given) if given else None)


def _name_of(given: Path) -> str:
    """The name in a spec or a plan, for which nothing is planned; or what is no file, but the name of what runs."""
    if given.exists():
        found = read_given(given)
        return found.written.name if isinstance(found, ResolvedSpec) else found.deployable.name
    others = running_names()
    if str(given) in others:
        return str(given)
    reason = "there is no such file, and nothing of that name is running here"
    fix = f"name what is running: {' or '.join(others)}" if others else "check the path"
    raise SpecError([Violation("", None, "S101 must be a readable file", reason, fix).at(str(given))])


def _nothing_runs() -> str:
    """Said where nothing runs of what was asked for."""
    others = running_names()
    return f"it is not running here; running: {', '.join(others)}" if others else "nothing is running here"


def _run_in_runtime(words: Sequence[str]) -> int:
    """The runtime is started only as a process; how its own processes ended among themselves is not the user's.

    Raises TidemillError where the answer is wanted as JSON. Otherwise the runtime has said what went wrong.
    """
    require_runtime()
    as_json = wants_json(words)
    command = [sys.executable, "-m", "runtime", *words]
    done = subprocess.run(command, check=False, text=True, stderr=subprocess.PIPE if as_json else None)
    status = done.returncode if done.returncode in (0, 2) else 1
    if as_json and status:
        _raise_what_was_said(words, done.stderr, status)
    return status


def _raise_what_was_said(words: Sequence[str], stderr: str, status: int) -> NoReturn:
    *before, last = stderr.strip().splitlines() or ["tidemill: it was ended"]
    print("".join(f"{line}\n" for line in before), end="", file=sys.stderr)
    said = last.removeprefix("tidemill: ")
    name = "checkpoint digest" if list(words[:2]) == ["checkpoint", "digest"] else words[0]
    fix = f"see tidemill {name} --help"
    if status == 2:
        reason = said.removeprefix("was called wrongly; ").removesuffix(f"; {fix} [S900]")
        raise CallError([Violation("", None, "S900 was called wrongly", reason, fix).at("tidemill")])
    raise LocalError(f"R109 {name} failed", said, "correct what is named, and call it again")


def _curl(record: Record, *, with_key: bool) -> str:
    body = json.dumps({"model": record.model} | TRY_BODY)
    headers = shlex.quote("Content-Type: application/json") + (' -H "Authorization: Bearer $KEY"' if with_key else "")
    return f"curl {record.endpoint}/v1/completions -H {headers} -d {shlex.quote(body)}"


def _because(reason: str | None) -> str:
    """A reason may be a process's last words, or a pod's."""
    return f" ({printable(reason)})" if reason else ""


def _say(sentence: str) -> None:
    print(printable(sentence), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

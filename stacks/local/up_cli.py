"""The commands that run a plan on this machine: `up`, `down` and `key`.

This file prints and decides nothing; `cli.py` formats a deployment and its day.
"""

import argparse
import json
import shlex
import sys
import time
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.command.options import add_command, add_format, add_previous, add_spec_or_plan
from planner.command.printed import print_json, say, warn
from planner.compiler import plan_from
from planner.plan.plan import Plan
from planner.problems.finding import warnings_json
from stacks.local.api_key import new_key
from stacks.local.cli import play_day, record_json, say_day, stay
from stacks.local.deployment import (
    follow,
    plan_day,
    require_cpu,
    require_keys,
    require_matching_run,
    start,
    stop,
)
from stacks.local.errors import LocalError
from stacks.local.find import (
    DEMO,
    deployment_folder,
    find_deployment,
    find_running,
    find_started_here,
    nothing_runs_message,
)
from stacks.local.in_service import with_maps
from stacks.local.played_day import read_length
from stacks.local.record import Record
from stacks.local.run_folder import RunFolder

__all__ = ["add_down", "add_key", "add_up"]

HOST = "127.0.0.1"
TRY_BODY = {"prompt": "Return a list of", "max_tokens": 32, "temperature": 0}


def add_up(commands: Any) -> None:
    """Add `up` to `commands`, the result of `add_subparsers`."""
    up = add_command(
        commands,
        "up",
        "run a plan on this machine",
        "Start every unit of a plan and its gateway as processes on this machine, and print the gateway's address.",
    )
    add_spec_or_plan(up, default="the bundled demo")
    add_previous(up)
    up.add_argument(
        "--detach", action="store_true", help="return when the endpoint answers, and leave everything running"
    )
    up.add_argument(
        "--keys", type=Path, metavar="FILE", help="JSON file with the API keys of clients; default: no key is needed"
    )
    up.add_argument(
        "--day",
        metavar="DURATION",
        help="play the schedule's day in this time, such as 5min: units turn on and off; default: all stay on",
    )
    up.add_argument(
        "--host", help=f"loopback address of the gateway; nodes get the addresses after it; default: {HOST}"
    )
    add_format(up)
    up.set_defaults(command=_up)


def add_down(commands: Any) -> None:
    """Add `down` to `commands`, the result of `add_subparsers`."""
    down = add_command(
        commands, "down", "stop what `up` started", "Stop every process of a deployment on this machine."
    )
    add_spec_or_plan(down, default="the one started in this folder", metavar="SPEC|PLAN.json|NAME")
    add_format(down)
    down.set_defaults(command=_down)


def add_key(commands: Any) -> None:
    """Add `key` to `commands`, the result of `add_subparsers`."""
    key = add_command(
        commands,
        "key",
        "make an API key for the gateway",
        "Make an API key and its entry for the gateway's file of keys. The key is shown this once and kept nowhere.",
    )
    key.add_argument("--name", default="default", help="name of the key's owner, for logs and the file of keys")
    add_format(key)
    key.set_defaults(command=_key)


def _up(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    length_s = read_length(arguments.day) if arguments.day is not None else None
    plan = plan_from(arguments.given or DEMO, arguments.previous, overlays=arguments.overlays)
    plan.require_local()
    require_cpu(plan, arguments.given or DEMO)
    require_keys(plan, arguments.keys)
    day = plan_day(plan, length_s) if length_s is not None else None
    warn(plan.warnings)
    running = _same_plan_running(plan)
    if running is not None:
        require_matching_run(running, arguments.host, arguments.keys, day)
        say(f"{running.name} is already running here with this plan (supervisor: process {running.supervisor})")
        with suppress(KeyboardInterrupt):  # another `up` started it, so Ctrl-C does not stop it
            _say_up(_wait_until_ready(deployment_folder(plan.name)), plan, arguments.format)
        return 0
    planned = time.monotonic() - began
    host = HOST if arguments.host is None else arguments.host
    folder = start(plan, host, detached=arguments.detach, keys=arguments.keys, day=day)
    with suppress(KeyboardInterrupt):
        record = _wait_until_ready(folder)
        _say_ready(record, planned, time.monotonic() - began)
        _say_other_weights(folder, record)
        _say_up(record, plan, arguments.format)
        if arguments.detach:
            say(f"it goes on until: tidemill down {folder.name}")
            return 0
        (stay if day is None else play_day)(folder)
    return _end(folder, has_json=arguments.format == "json")


def _same_plan_running(plan: Plan) -> Record | None:
    folder = find_running(plan.name)
    record = folder.read() if folder else None
    if record is not None and record.is_stopping:
        reason = f"its answers have up to {record.drain_s:g} s to end"
        fix = f"start it again once tidemill down {plan.name} has returned"
        raise LocalError(f"R122 {plan.name} is being stopped here", reason, fix)
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
            if record.is_ready or "ready" in record.stages:  # all was ready once, whatever a unit does now
                return record
    raise LocalError(
        f"R108 {folder.name} was stopped before it was ready", "another process stopped it", "start it again"
    )


def _say_ready(record: Record, planned: float, total: float) -> None:
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in _stage_seconds(record, planned))
    say(f"ready in {total:.1f} s ({stages})")


def _say_other_weights(folder: RunFolder, record: Record) -> None:
    """Print a line if the checkpoint's weights have changed since this plan last ran here."""
    try:
        if record.weights_before not in (None, folder.served_weights.read_text()):
            say(
                f"{record.name} serves with other weights than when this plan ran here last: its checkpoint was changed"
            )
    except (OSError, UnicodeDecodeError):
        pass  # the plan names the weights, or the disk was full


def _stage_seconds(record: Record, planned: float) -> list[tuple[str, float]]:
    """Return (stage, seconds) for each stage of a start. The first is planning, which took `planned` seconds."""
    names = {"gateway": "gateway", "loading": "processes", "joining": "loading", "ready": "joining"}
    seconds, previous = [("planning", planned)], 0.0
    for reached, moment in sorted(record.stages.items(), key=lambda stage: stage[1]):
        seconds.append((names[reached], moment - previous))
        previous = moment
    return seconds


def _say_up(record: Record, plan: Plan, output_format: str) -> None:
    if output_format == "json":
        found = with_maps(record, deployment_folder(plan.name).launch_folder)
        print_json(record_json(found) | warnings_json(plan.warnings))
        return
    if len(record.gateways) > 1:
        say("each gateway takes any call; when one is gone, ask another again with the same Idempotency-Key")
    for gateway in record.gateways:
        print(f"endpoint: {gateway.endpoint}")
    print(f"plan: {record.plan_digest}")
    print(f"try: {_curl(record)}", flush=True)


def _curl(record: Record) -> str:
    body = json.dumps({"model": record.model} | TRY_BODY)
    headers = shlex.quote("Content-Type: application/json") + (
        "" if record.keys is None else ' -H "Authorization: Bearer $KEY"'
    )
    return f"curl {record.endpoint}/v1/completions -H {headers} -d {shlex.quote(body)}"


def _end(folder: RunFolder, *, has_json: bool) -> int:
    """Stop the deployment and, if a day was played, print how it went. Return the exit status."""
    running = folder.read() if folder.is_running() else None
    if running is not None:
        say(f"stopping; answers that still run have {running.drain_s:g} s to end")
    stop(folder)
    record = folder.read()
    if running is not None:
        say(f"{folder.name} is stopped")
    if record is None or record.day is None or record.day.began is None:
        return 0
    with redirect_stdout(sys.stderr if has_json else sys.stdout):  # the document was printed when all was ready
        return say_day(record.day)


def _down(arguments: argparse.Namespace) -> None:
    is_named = arguments.given or arguments.overlays
    folder = find_deployment(arguments.given, arguments.overlays) if is_named else find_started_here()
    if folder is not None:
        stop(folder)
    if arguments.format == "json":
        print_json({"stopped": folder.name if folder else None})
    else:
        print(f"{folder.name} is stopped" if folder else nothing_runs_message())
        if folder is not None:
            say(f"its logs are in {folder.path}")


def _key(arguments: argparse.Namespace) -> None:
    made = new_key()
    if arguments.format == "json":
        print_json(asdict(made))
        return
    print(f"key: {made.key}")
    print(f"entry: {json.dumps({'name': arguments.name, 'hash': made.hash})}")

"""`pulumi up` killed at ten moments, then repeated: `python -m tests.benchmarks.killed_up`.

The published system, on 278 fake nodes. One `up` is left alone: what it makes, and how long it takes, is what the
others are held against. Each of the ten begins with nothing and is killed with SIGKILL, engine and provider and all, at
a moment of its own. Then the lock is taken away, as Pulumi asks for, and the same `up` runs to its end.
Pulumi's backend of files may be killed while it writes the state: then the backup that it has made takes its place.

Exits with 1 if objects or state were other ones than those of the `up` that was left alone, or if a preview after it
found something to do.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.goals import Goals
from tests.cluster.build import obtain
from tests.cluster.deployed import listing, new_stack
from tests.cluster.fake_nodes import create_nodes, h800_nodes, running_control_plane_for_fake_nodes
from tests.cluster.products import PULUMI
from tests.cluster.published import write_published_spec

MOMENTS = 10
OF_CONTROLLERS = {"pods", "controllerrevisions", "endpoints", "replicasets", "secrets", "ipaddresses"}  # drawn


def main():
    """Kill and repeat."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    folder = Path(tempfile.mkdtemp())
    spec = write_published_spec(folder)
    (folder / "cluster").mkdir()
    goals = Goals()
    with running_control_plane_for_fake_nodes(folder / "cluster") as control_plane:
        create_nodes(control_plane, h800_nodes())
        stack = new_stack(obtain(PULUMI), folder / "stack", control_plane.kubeconfig, spec)
        began = time.monotonic()
        assert stack.up().status == 0
        whole_s, expected = time.monotonic() - began, state_of(stack, control_plane)
        print(f"left alone: {whole_s:.1f} s, {len(expected[0])} objects, {len(expected[1])} resources", flush=True)
        others = 0
        for number in range(MOMENTS):
            assert stack.destroy().status == 0
            moment = whole_s * (number + 0.5) / MOMENTS
            others += not is_repeated(stack, control_plane, moment, expected)
        goals.check("runs that came to another state, of 10", others, "<=", 0)
    return goals.report()


def is_repeated(stack, control_plane, moment, expected):
    """Kill an `up` after so many seconds, repeat it, and compare."""
    process = stack.start("up", "--yes", "--skip-preview")
    time.sleep(moment)
    was_running = process.poll() is None
    for pid in [*family(process.pid)] if was_running else []:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    is_torn = was_torn(stack)
    made = len(listing(control_plane.api) & expected[0])
    stack.run("cancel", "--yes")
    began = time.monotonic()
    run = stack.up()
    seconds, preview = time.monotonic() - began, stack.preview("--expect-no-changes")
    found = state_of(stack, control_plane)
    is_same = run.status == 0 and found == expected and not preview.steps
    of_backup = ", from Pulumi's backup" if is_torn else ""
    print(
        f"killed after {moment:.1f} s ({made} objects there): repeated in {seconds:.1f} s{of_backup}, same: {is_same}",
        flush=True,
    )
    if not is_same:
        print(run.output[-2000:], preview.steps, found[0] ^ expected[0], found[1] ^ expected[1], flush=True)
    return is_same and was_running


def was_torn(stack):
    """Whether Pulumi left no state that can be read; its backup then takes its place, as its users do by hand."""
    for backup in (stack.home / "state" / ".pulumi" / "stacks").rglob("*.json.bak"):
        state = backup.with_suffix("")
        if not state.exists() or not state.stat().st_size:
            state.write_bytes(backup.read_bytes())
            return True
    return False


def family(pid):
    """A process and all that it started."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def state_of(stack, control_plane):
    """The objects that are there, but for those whose names are drawn, and the resources of Pulumi's state."""
    objects = {each for each in listing(control_plane.api) if each[0] not in OF_CONTROLLERS}
    return objects, {each["urn"] for each in stack.resources()}


if __name__ == "__main__":
    sys.exit(main())

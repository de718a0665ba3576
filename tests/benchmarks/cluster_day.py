"""The demo's day on a real cluster, recorded: `python -m tests.benchmarks.cluster_day`, as root.

It writes docs/cluster-day.md and its picture.

`pulumi up` puts `stacks/specs/demo-day.yaml` on four nodes, with NetworkPolicies enforced. Its controller follows the
day, which takes ten minutes, while four callers stream one answer after another. Exits with 1 if an answer failed, was
cut short, or had another text than before the day.
"""

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from math import inf
from pathlib import Path

from matplotlib import pyplot

from planner.facts.day import hh_mm
from stacks.controller.observe import find_deployment
from stacks.controller.spec import read_clock
from stacks.kube.api import Api
from stacks.kube.connection import Connection
from tests.benchmarks.played_day import Streams, undisturbed
from tests.cluster.build import obtain
from tests.cluster.cluster import running_cluster
from tests.cluster.cluster_day import NAME, day_deployed, looks_until
from tests.cluster.policies import enforced_policies
from tests.cluster.products import PULUMI
from tests.cluster.runs import only_run
from tests.stacks.deployments import REPOSITORY

NAMESPACE, PACE, DAY_S = "demo-day", 144, 86_400
NUM_UNITS = 4
PAGE, PICTURE = REPOSITORY / "docs" / "cluster-day.md", REPOSITORY / "docs" / "cluster-day.png"
BIN_S = 10
HEAD = """# A day on a real cluster

`python -m tests.benchmarks.cluster_day`, as root, made this page and its picture. `pulumi up` put
[the demo's day](../stacks/specs/demo-day.yaml) on four nodes: two prefill and two decode units, the gateway and
[the controller](controller.md), with [NetworkPolicies](network-policies.md) enforced. The day went 144 times as fast as
clocks. Pods start, load, drain and end in their own time, so a warm-up of 30 minutes is 12.5 s here, and units come
late. Four callers streamed one answer after another.

Each row is one change. "Ready" is what the controller saw at its last look, up to 5 s earlier. "Units with pods" is
read at the moment of the row. "Answers since" counts the answers until the next row. The first row also has those
before it, and the last one all that came after it.

![Units wanted and ready, and answers a second, over the day](cluster-day.png)

"""


def main():
    """Play the day, write the page, and say whether all was well."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    folder = Path(tempfile.mkdtemp())
    for part in ("cluster", "stack"):
        (folder / part).mkdir()
    with only_run() as run, running_cluster(run, folder / "cluster") as cluster, enforced_policies(cluster):
        controller = {"namespace": NAMESPACE, "controller": {"pace": PACE}}
        deployed = day_deployed(obtain(PULUMI), folder / "stack", cluster, NAMESPACE, kubernetes=controller)
        began = time.time()
        done = deployed.pulumi.up()
        assert done.status == 0, done.output
        up_s = time.time() - began
        clock = read_clock(find_deployment(Api(Connection(cluster.api)), NAMESPACE, NAME))
        address = deployed.endpoint().removeprefix("http://").partition(":")[0]
        with Streams(address, undisturbed(address)) as streams:
            end = time.time() + DAY_S / PACE
            looks = looks_until(deployed, lambda _: time.time() > end, DAY_S / PACE + 60)
            looks.append((time.time(), looks[-1][1]))
        deployed.pulumi.destroy()
    PAGE.write_text(HEAD + page(looks, streams, clock, up_s))
    draw(looks, streams.answers, clock)
    print(PAGE.read_text())
    return 1 if streams.wrong else 0


def page(looks, streams, clock, up_s):
    """The record, and what it comes to."""
    begin, end = looks[0][0], looks[-1][0]
    ends = [*(at for at, _ in looks[1:-1]), inf]  # the callers began before the first look, and went on after the last
    lines = [
        "| s | the day's time | state | ready, of those wanted | units with pods | answers since |",
        "|---|---|---|---|---|---|",
    ]
    for (at, look), since, until in zip(looks, [-inf, *ends], ends, strict=False):
        answers = sum(since <= answer.ended < until for answer in streams.answers)
        minute = int(clock.day_time(at)) // 60 % (24 * 60)
        running = ", ".join(unit.removeprefix(f"{NAME}-") for unit in look.running)
        status = look.status
        lines.append(
            f"| {at - begin:.0f} | {hh_mm(minute)} | {status['state']} | {status['units']} | {running} | {answers} |"
        )
    busy = sum(len(look.running) * (until - at) for (at, look), (until, _) in pairwise(looks))
    tokens = sum(answer.num_tokens for answer in streams.answers)
    lines += [
        "",
        f"Recorded on {time.strftime('%d %B %Y', time.gmtime(begin))}. `pulumi up` took {up_s:.0f} s.",
        f"{len(streams.answers):,} answers of {tokens:,} tokens; **{len(streams.wrong)} "
        "failed, were cut short or had another text**",
        "than before the day. Units had pods for "
        f"{busy / (end - begin) / NUM_UNITS:.0%} of the time that they would have had without a schedule.",
        "",
    ]
    return "\n".join(lines)


def counts(status):
    """Phase -> units that are ready, and units that are wanted: from `prefill 2/2, decode 1/1`."""
    parts = (each.split() for each in status["units"].split(", "))
    return {phase: tuple(map(int, numbers.split("/"))) for phase, numbers in parts}


def draw(looks, answers, clock):
    """Write the picture: each phase's units, and answers below, against the day's time."""
    hours = [(clock.day_time(at) - clock.day_time(looks[0][0])) / 3600 for at, _ in looks]
    first = clock.day_time(looks[0][0]) / 3600 % 24
    phases = list(counts(looks[0][1].status))
    figure, axes = pyplot.subplots(len(phases) + 1, 1, figsize=(9, 5), sharex=True, layout="constrained")
    for axis, phase in zip(axes, phases, strict=False):
        ready, wanted = zip(*(counts(look.status)[phase] for _, look in looks), strict=True)
        axis.fill_between(hours, ready, step="post", alpha=0.35, label="ready")
        axis.step(hours, wanted, where="post", color="black", linewidth=1.2, label="wanted")
        axis.set(ylabel=f"{phase} units", ylim=(0, NUM_UNITS / 2 + 0.4), yticks=range(NUM_UNITS // 2 + 1))
    axes[0].legend(loc="lower right", ncols=2, frameon=False)
    ended = [(clock.day_time(answer.ended) - clock.day_time(looks[0][0])) / 3600 for answer in answers]
    width = BIN_S * PACE / 3600
    bins = [index * width for index in range(int(max(hours) / width) + 1)]
    axes[-1].hist(ended, bins=bins, weights=[1 / BIN_S] * len(ended), color="tab:green", alpha=0.6)
    axes[-1].set(ylabel="answers a second", xlabel="the day's time")
    ticks = [hour - first for hour in range(int(first) + 1, int(first + max(hours)) + 1) if hour % 3 == 0]
    axes[-1].set_xticks(ticks, [f"{round(first + tick) % 24:02d}:00" for tick in ticks])
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    sys.exit(main())

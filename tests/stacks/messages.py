"""Every message of a command that runs, asks or deploys something, by rule: `messages.txt`.

`python -m tests.docs` writes the page, whose examples `docs/rules.md` has too. What a message needs that no test should
wait for (a supervisor that does not end, a base install) is put in its place.
"""

import errno
import os
import re
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from planner.compiler import compile_plan
from planner.facts.digest import pretty_json
from planner.facts.names import labels
from planner.facts.trace import TraceRequest
from planner.problems.errors import TidemillError
from planner.rules.check import check_spec
from planner.schedule.schedule import Step, Timetable
from planner.spec.pods import OverlaySpec
from stacks.controller.cli import read_deployment
from stacks.controller.order_cli import read_state, read_until, require_deployment, require_state_or_end
from stacks.doctor import needs
from stacks.gitops.argument_errors import no_loads_file_error
from stacks.gitops.check import Call, require_call
from stacks.gitops.comment import comment_on
from stacks.gitops.forge import TOKEN, ForgeError, Repository, read_repository
from stacks.gitops.gate import read_conditions
from stacks.gitops.git import (
    Checkout,
    Heads,
    find_checkout,
    require_branch,
    require_no_filter,
    require_unchanged,
    require_within,
)
from stacks.gitops.git_process import GitError
from stacks.gitops.init import make_environments, require_loads, require_repository, require_safe_path, write_files
from stacks.gitops.propose import Call as ProposeCall
from stacks.gitops.propose import check_payback
from stacks.live.status import ask_cluster
from stacks.local import apply_cli, deployment, find, layout, run_folder, runtime_cli, up_cli
from stacks.local.layout import Listener
from stacks.local.played_day import DayRecord, plan_play, read_length
from stacks.local.record import GatewayRecord, Record, UnitRecord
from stacks.local.run_folder import RunFolder
from stacks.measured import recorded
from stacks.measured.recorded import read_recorded
from stacks.program.source import Source
from stacks.simulator.call import read_call
from stacks.simulator.flows.failures import Failure, find_outages, read_failures
from stacks.simulator.report import plot
from stacks.simulator.requests import trace
from stacks.simulator.requests.columns import play_traces
from stacks.simulator.requests.trace import read_window
from stacks.simulator.variants import check_variants, read_variants, require_speeds, require_traffic
from tests.stacks.deployments import DEMO_SPEC

__all__ = ["BROUGHT_ABOUT", "DEMO", "LOCAL_MESSAGES", "Folder", "local_messages_page"]

LOCAL_MESSAGES = Path(__file__).parent / "messages.txt"
HEAD = "Every message of what runs, asks or deploys, by rule. Written by `python -m tests.docs`."
DIGEST = re.compile(r"sha256:[0-9a-f]+")
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
GONE = "demo-decode-0 ended: its rank 1 was killed"
DEMO = Record(
    "demo", f"sha256:{'0' * 64}", (GatewayRecord("gateway", "http://127.0.0.1:8000"),), "demo", (), supervisor=4711
)
ON_GPUS = SimpleNamespace(units=["demo-mixed-0"], unit_document=lambda _: {"device": "cuda"})
PLAYABLE = SimpleNamespace(document=SimpleNamespace(data={}), written=SimpleNamespace(traffic={}))


class Folder(SimpleNamespace):
    """A run folder whose supervisor did what the rule says."""

    name, path, supervisor = "demo", "~/.local/state/tidemill/demo", None

    def is_running(self):
        return self.lives

    def was_killed(self):
        return False

    def read(self):
        return self.record


def _two_supervisors(folder):
    run = RunFolder(folder / "demo")
    run.path.mkdir()
    with patch.object(run_folder, "PROBE_GRACE_S", 0.001), run.hold_lock(), run.hold_lock():
        pass


def _which_one(_):
    with patch.object(find, "find_all", lambda *_: [Folder(name="chat"), Folder(name="demo")]):
        find.find_deployment(None)


def _started_elsewhere(_):
    with patch.object(find, "find_all", lambda *_: [Folder(record=replace(DEMO, started_in="/srv/chat"))]):
        find.find_started_here()


def _no_such_unit(_):
    units = tuple(UnitRecord(f"demo-{phase}-0", phase, "ready", 2) for phase in ("prefill", "decode"))
    apply_cli._num_moe_layers(Folder(record=replace(DEMO, units=units)), "demo-decode-9")


def _stays_in_its_epoch(_):
    reason = "the epoch leaves expert 5 of MoE layer 0 without a slot"
    apply_cli._require_switched(Folder(record=DEMO), "demo-decode-0", {"number": 0, "reason": reason})


def _will_not_stop(_):
    with ExitStack() as patched:
        patched.enter_context(patch.object(deployment.time, "monotonic", count(0, 60).__next__))
        patched.enter_context(patch.object(deployment, "terminate"))
        deployment.stop(Folder(lives=True, record=DEMO))


def _a_taken_port(_):
    taken = patch.object(deployment.socket.socket, "bind", side_effect=OSError(errno.EADDRINUSE, "taken"))
    with taken:
        deployment.require_free([Listener("127.0.0.4", 29501, "where the unit's nodes meet")])


def _without_torch(_):
    with patch.object(deployment.importlib.util, "find_spec", lambda _: None):
        deployment.require_runtime()


def _another_plan(_):
    with patch.object(up_cli, "find_running", lambda _: Folder(record=DEMO)):
        up_cli._same_plan_running(SimpleNamespace(name="demo", digest=f"sha256:{'1' * 64}"))


def _stops_still(_):
    with patch.object(up_cli, "find_running", lambda _: Folder(record=replace(DEMO, drain_s=30.0, is_stopping=True))):
        up_cli._same_plan_running(SimpleNamespace(name="demo", digest=DEMO.plan_digest))


def _stopped_meanwhile(_):
    with patch.object(up_cli, "follow", lambda _: ()):
        up_cli._wait_until_ready(Folder())


def _misshapen(_):
    pod = {"containers": [{"name": "gateway", "resources": {"requests": {"cpu": "abc"}}}]}
    metadata = {"name": "demo-gateway", "namespace": "tidemill"}
    metadata["labels"] = labels("demo", "gateway")
    gateway = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    kubernetes = SimpleNamespace(overlay=OverlaySpec(gateway_pod={"spec": pod}))
    needs._require_readable(SimpleNamespace(name="demo", kubernetes=kubernetes), [gateway])


def _no_such_context(folder):
    with patch.dict("os.environ", {"KUBECONFIG": str(folder / "none")}):
        ask_cluster(None, "production")


class Spec(SimpleNamespace):
    """A spec whose places nobody looks up."""

    def locate(self, finding):
        return finding.at("spec.yaml", 1, 1)


def _without_traffic(_):
    require_traffic(Spec(written=SimpleNamespace(traffic=None)))


def _without_speed(_):
    outlook = SimpleNamespace(phase="mixed", case=None, why_not="the rates of cpu are not known")
    require_speeds(Spec(), SimpleNamespace(speed=[outlook]))


def _no_such_node(_):
    cluster = SimpleNamespace(spares=("node-22",))
    units = [SimpleNamespace(name="chat-decode-0", nodes=("node-0", "node-1"))]
    find_outages(SimpleNamespace(units=units, spec=SimpleNamespace(cluster=cluster)), [Failure("nod-1", 760)])


def _edited_workflow(folder):
    (folder / "check.yml").write_text("edited")
    write_files(folder, {"check.yml": "as written"})


def _linked_workflow(folder):
    (folder / "comment.yml").symlink_to("elsewhere.yml")
    write_files(folder, {"comment.yml": "as written"})


def _forge(address, token="a-token", url=None):
    with patch.dict(os.environ, {TOKEN: token}):
        read_repository(address, None, url)


def _spec_that_others_changed(folder):
    """In a repository whose next commit, not checked out, changes the spec."""

    def git(*words):
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@git.example", "-c", "init.defaultBranch=main")
        return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    git("init")
    for text in ("before", "after"):
        (folder / "spec.yaml").write_text(text)
        git("add", "spec.yaml")
        git("commit", "-m", text)
    base = git("rev-parse", "HEAD").strip()
    git("checkout", "--detach", "HEAD~")
    require_unchanged(find_checkout(folder), "origin", Heads("main", base, None), [Path("spec.yaml")])


def _filtered_file(folder):
    subprocess.run(["git", "init"], cwd=folder, check=True, capture_output=True)
    (folder / ".gitattributes").write_text("loads.json filter=lfs\n")
    require_no_filter(find_checkout(folder), folder, [Path("loads.json")])


def _plan_in_place_of_a_spec(folder):
    (folder / "plan.json").write_text(pretty_json(compile_plan(check_spec(DEMO_SPEC)).as_json()))
    return str(folder / "plan.json")


def _raise(error):
    raise error


def _no_trace(_):
    with patch.object(trace, "read_file", lambda *_: b"at,prompt,output\n"):
        trace.read_trace(Path("trace.csv"))


def _empty_window(_):
    play_traces(None, (), (), [TraceRequest(0.0, 10, 10), TraceRequest(90.0, 10, 10)], (100.0, 200.0))


def _options(**given):
    names = ("variants", "fail", "date", "window", "balancer", "trace", "plot", "report")
    return SimpleNamespace(**(dict.fromkeys(names) | {"variants": [], "fail": []} | given))


def _recorded(models, experts):
    samples = [recorded.Sample(model, ("mixed-0", "0"), 0, expert, 1) for model in models for expert in experts]
    with patch.object(recorded, "_read_samples", lambda _: samples):
        read_recorded(["http://127.0.0.2:9400/metrics"])


def _nothing_recorded(_):
    _recorded([], [])


def _too_short_a_day(_):
    both = ("demo-mixed-0", "demo-mixed-1")
    steps = tuple(
        Step(at, 0, {"mixed": len(units)}, units, len(units), None)
        for at, units in (("00:00", both), ("12:00", both[:1]), ("14:00", both))
    )
    plan_play(Timetable("UTC", steps, 600.0, 300.0), 300.0, dict.fromkeys(both, 1), 2)


def _fails(error):
    raise error


OUR_REPOSITORY = Repository("github", "https://github.com/o/r", "https://github.com", "o/r", "a-token")

BROUGHT_ABOUT = {
    "R101": _two_supervisors,
    "R102": lambda _: layout._loopback("10.0.0.1"),
    "R103": _which_one,
    "R104": lambda _: list(deployment.follow(Folder(lives=False, record=Record(**(vars(DEMO) | {"failure": GONE}))))),
    "R105": _will_not_stop,
    "R106": _without_torch,
    "R107": _another_plan,
    "R108": _stopped_meanwhile,
    "R109": lambda _: runtime_cli._raise_runtime_error(["checkpoint", "digest"], "tidemill: no such file: weights", 1),
    "R110": lambda _: _fails(
        run_folder.unusable_error(Path("/root/tidemill"), PermissionError(13, "Permission denied"))
    ),
    "R111": lambda _: deployment.require_keys(SimpleNamespace(gateway=SimpleNamespace(keys="chat-keys")), None),
    "R112": lambda _: read_recorded(["http://127.0.0.1:1/metrics"]),
    "R113": _nothing_recorded,
    "R114": lambda _: _recorded(["a", "b"], [0]),
    "R115": lambda _: _recorded(["a"], [0, 2]),
    "R116": lambda _: plan_play(None, 300.0, {}, 2),
    "R117": _too_short_a_day,
    "R118": lambda _: read_length("5"),
    "R120": lambda folder: _fails(run_folder._owner_error(Path("/home/b/.local/state/tidemill"), "b")),
    "R121": lambda folder: _fails(run_folder._damage_error(Path("/root/tidemill/demo/deployment.json"), ValueError())),
    "R119": lambda _: deployment.require_matching_run(DEMO, None, None, DayRecord(300.0, (), ())),
    "R122": _stops_still,
    "R123": _a_taken_port,
    "R124": lambda _: deployment.require_keys(None, Path("/nowhere/keys.json")),
    "R125": lambda _: deployment.require_matching_run(DEMO, None, Path("keys.json"), None),
    "R126": lambda _: deployment.require_matching_run(DEMO, "127.0.1.1", None, None),
    "R127": _started_elsewhere,
    "R128": _no_such_unit,
    "R129": _stays_in_its_epoch,
    "R201": _no_such_context,
    "R202": _misshapen,
    "R301": lambda _: Source().deployed,
    "R302": lambda _: Source(plan="plan.json", previous="previous.json").deployed,
    "R303": lambda _: Source.parse({"spec": 3}),
    "R304": lambda _: Source.parse({"spec": "demo.yaml", "overlays": "prod.yaml"}),
    "R305": lambda _: Source(spec="nowhere.yaml").deployed,
    "R306": lambda folder: Source(spec=_plan_in_place_of_a_spec(folder)).deployed,
    "R401": _without_traffic,
    "R402": _without_speed,
    "R403": lambda _: read_failures(["node-7 at noon"]),
    "R404": _no_such_node,
    "R405": lambda _: read_call(_options(variants=["decode.ep_size 72"]), PLAYABLE),
    "R406": lambda _: read_call(_options(variants=["cluster.spares=[node-1"]), PLAYABLE),
    "R407": lambda _: read_call(_options(variants=["traffic.scale=much"]), PLAYABLE),
    "R408": lambda _: plot.require_plot(Path("day.gif")),
    "R411": lambda _: trace.read_trace(Path("no-trace.csv")),
    "R412": _no_trace,
    "R413": lambda _: read_window("noon-1"),
    "R414": _empty_window,
    "R415": lambda _: read_call(_options(window="0-600"), PLAYABLE),
    "R416": lambda _: read_call(_options(fail=["node-1@12:00"], trace=Path("trace.csv")), PLAYABLE),
    "R417": lambda _: read_call(_options(date="tomorrow"), PLAYABLE),
    "R418": lambda _: check_variants(check_spec(DEMO_SPEC), read_variants(["name.x=72"], [])),
    "R501": lambda _: read_deployment("chat", "tidemill controller"),
    "R502": lambda _: require_state_or_end("force", None, is_end=False),
    "R503": lambda _: read_until("hold", "2 hours", NOON),
    "R504": lambda _: read_state("21:00", [{"at": "06:00"}, {"at": "22:00"}]),
    "R505": lambda _: require_deployment(None, "hold", "tidemill", "chat"),
    "R601": lambda _: read_conditions("outages"),
    "R602": lambda _: require_call(Call(Path("spec.yaml"), Path("deploy"), None, read_conditions("cost+10%"))),
    "R603": lambda _: require_call(Call(Path("spec.yaml"), Path("deploy"), Path("no-base"), ())),
    "R604": lambda folder: require_call(Call(Path("/srv/spec.yaml"), Path("deploy"), folder, ())),
    "R605": lambda _: comment_on(Path("no-report.json")),
    "R606": lambda _: require_safe_path("SPEC", Path("my spec.yaml")),
    "R607": _edited_workflow,
    "R608": _linked_workflow,
    "R609": lambda _: require_repository("git@git.example:team/deployments.git"),
    "R610": lambda _: _forge("https://github.com/o/r", token=""),
    "R611": lambda _: _forge("/srv/git/deployments.git"),
    "R612": lambda _: _forge("https://git.example/o/r.git"),
    "R613": lambda folder: require_within(folder, "SPEC", Path("/srv/spec.yaml")),
    "R614": _spec_that_others_changed,
    "R615": lambda _: _raise(no_loads_file_error("tidemill gitops propose", "--loads")),
    "R616": lambda _: _raise(GitError("push", "error: failed to push some refs")),
    "R617": lambda _: _raise(ForgeError(OUR_REPOSITORY, "HTTP 401: Bad credentials")),
    "R618": lambda folder: require_branch(Checkout(folder, folder, folder), "main", "main"),
    "R619": lambda _: check_payback(ProposeCall(Path("spec.yaml"), Path("deploy"), most_hours=12.0)),
    "R620": lambda _: make_environments(Path("spec.yaml"), Path("deploy"), (), "dev,Prod"),
    "R621": lambda _: require_loads("http://ada:secret@prometheus:9090", ()),
    "R622": lambda _: _forge("https://git.example/o/r.git", url="https://git.example/gitlab"),
    "R623": _filtered_file,
    "S733": lambda _: deployment.require_cpu(ON_GPUS, Path("spec.yaml")),
}


def local_messages_page(folder):
    """Return the page; `folder` is an empty one."""
    return "\n\n".join([HEAD, *(f"{rule}\n  {_said(rule, folder)}" for rule in BROUGHT_ABOUT)]) + "\n"


def _said(rule, folder):
    try:
        BROUGHT_ABOUT[rule](folder)
    except TidemillError as error:
        (problem,) = error.findings
        assert problem.rule.startswith(rule)
        return DIGEST.sub("sha256:...", problem.message).replace(str(folder / "none"), "~/.kube/config")
    raise AssertionError(f"{rule} was not brought about")

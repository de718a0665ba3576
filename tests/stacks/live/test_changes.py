"""What `status --changes` says of the changes that a controller has recorded."""

import json

import pytest

from stacks import cli
from stacks.live import changes
from tests.stacks.controller.day_spec import write_day
from tests.stacks.controller.test_changes import LEAVING, OLD, READY, STARTING, follow
from tests.stacks.controller.test_observe import SPEC
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.kube.fake_api import running_fake_api

KIND = {"kind": "TidemillDeployment", "name": "deployments", "namespaced": True}
DEPLOYMENT = "/apis/tidemill.dev/v1alpha1/namespaces/tidemill/deployments/demo-day"


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """What the command prints of a deployment with this status; None is no deployment."""
    spec = write_day(tmp_path)
    with running_fake_api() as (fake, api):
        monkeypatch.setattr(changes, "connect", lambda context: api)

        fake.kinds["/apis/tidemill.dev/v1alpha1"] = [KIND]

        def run(status, *options):
            if status is not None:
                metadata = {"name": "demo-day", "namespace": "tidemill", "creationTimestamp": "2025-11-25T00:00:00Z"}
                fake.store(
                    DEPLOYMENT, {"kind": "TidemillDeployment", "metadata": metadata, "spec": SPEC, "status": status}
                )
            assert cli.main(["status", str(spec), "--changes", "--context", "any", *options]) == 0
            return capsys.readouterr().out

        yield run


def test_changes_are_shown_beside_their_promises(shown):
    """The newest first: one that goes on, after one that it has replaced."""
    recorded = follow(
        (OLD,) * 4, (STARTING, OLD, STARTING, OLD), (LEAVING, READY, LEAVING, OLD), (OLD, READY, OLD, OLD)
    )
    text = shown({"changes": recorded})

    assert text.splitlines() == [
        "demo-day: 2 changes, the newest first",
        f"  {recorded[1]['began']}  goes on, 20 min promised",
        "    to change: p0, d0, d1",
        "    served at least: 2 of 2 prefill units (1 of 2 promised), 2 of 2 decode units (1 of 2 promised)",
        f"  {recorded[0]['began']}  replaced by another change after 3.0 min, 20 min promised",
        "    restarted p0, d0, p1",
        "    not changed: d1",
        "    served at least: 1 of 2 prefill units (as promised), 1 of 2 decode units (as promised)",
    ]
    assert json.loads(shown({"changes": recorded}, "--format", "json"))["changes"] == recorded


def test_the_last_change_of_a_map_is_shown_beside_its_promise(shown):
    """Units that serve by another map than the plan's have a line, also where no unit has changed."""
    adopted = "max/mean 2 -> 1 for 3 experts, 1.0 MB; moved 1.0 MB (as promised)"
    kept = {"unit": "demo-day-decode-1", "inService": "sha256:0", "epoch": 0, "decision": "no map nearby is better"}
    maps = [{"unit": "demo-day-decode-0", "inService": "sha256:1", "epoch": 2, "adopted": adopted}, kept]

    assert shown({"expertMaps": maps}).splitlines() == [
        "demo-day: no change since it was deployed",
        f"  decode-0 is in epoch 2: {adopted}",
    ]
    assert json.loads(shown({"expertMaps": maps}, "--format", "json"))["expert_maps"] == maps


@pytest.mark.parametrize(
    ("number", "units", "said"),
    [(0, 1, "0 requests (as promised)"), (1, 1, "1 request (0 promised)"), (7, 0, "7 requests (nothing promised)")],
)
def test_requests_that_failed_are_shown_beside_their_promise(number, units, said, shown):
    """None is to fail, unless a phase was to be without a unit."""
    least = {"decode": {"units": units, "ofUnits": 2}}
    change = {"began": "2025-11-25T00:00:00Z", "units": [], "left": [], "least": least, "failed": number}

    assert shown({"changes": [change | {"promised": {"least": least}}]}).splitlines()[-1] == f"    failed: {said}"


@pytest.mark.parametrize("key", ["began", "ended"])
@pytest.mark.parametrize("written", ["2025-11-31T00:00:00Z", "2025-11-25t00:00:00+99:00", "noon"])
def test_a_change_with_an_odd_time_is_shown_as_it_is_written(key, written, shown):
    """The server's schema admits more forms of time than Python reads, and a status may be edited."""
    change = {"began": "2025-11-25T00:00:00Z", "ended": "2025-11-25T00:01:00Z"} | {key: written}
    text = shown({"changes": [change | {"units": [], "left": [], "least": {}, "promised": {"least": {}}}]})

    assert text.splitlines()[1] == f"  {change['began']}  carried out in an unknown time"


def test_a_deployment_without_changes_says_so(shown):
    """Or that there is none."""
    assert shown(None) == "demo-day: not applied\n"
    assert shown({}) == "demo-day: no change since it was deployed\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "on this machine nothing records changes of units"),
        (["--context", "x"], "demo has no kubernetes.controller"),
    ],
)
def test_changes_that_nobody_records_are_refused(options, reason, capsys):
    """On this machine, and without a controller."""
    assert cli.main(["status", str(DEMO_SPEC), "--changes", *options]) == 2
    assert reason in capsys.readouterr().err

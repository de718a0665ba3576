"""A person's orders, given by `tidemill hold` and `tidemill force`."""

import json
from datetime import UTC, datetime

import pytest

from planner.facts import names
from planner.spec.kubernetes import KubernetesSpec
from stacks.cli import main
from stacks.controller.order_cli import FIELD_MANAGER, NAMESPACE
from stacks.kube import api
from tests.stacks.controller.cluster import NAMESPACE as NS
from tests.stacks.controller.cluster import PLAN, MemoryCluster

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()
STEPS = [{"at": "06:00", "units": {"decode": 1}}, {"at": "22:00", "units": {}}]


class ClusterAtNoon(MemoryCluster):
    """A cluster whose clock has stopped, and which knows who wrote last."""

    manager = None

    def now(self):
        return NOON

    def merge(self, reference, changes, *, manager, part=""):
        self.manager = manager
        super().merge(reference, changes, manager=manager, part=part)

    @property
    def spec(self):
        """The deployment's."""
        return self.objects[names.DEPLOYMENT_KIND, PLAN]["spec"]


@pytest.fixture
def cluster(monkeypatch):
    """It is the one of any context."""
    made = ClusterAtNoon({"units": [], "steps": STEPS})
    monkeypatch.setattr(api, "connect", lambda _: made)
    return made


@pytest.mark.parametrize(
    ("written", "until"),
    [
        ("2h", "2026-12-01T14:00:00Z"),
        ("2026-12-01T14:00:00Z", "2026-12-01T14:00:00Z"),
        ("2026-12-01T14:00:00+01:00", "2026-12-01T13:00:00Z"),
    ],
)
def test_an_order_lasts_for_a_time_or_until_one(cluster, capsys, written, until):
    """Its end is reckoned by the cluster's clock, and written in UTC whatever zone it was given in."""
    assert main(["hold", f"{NS}/{PLAN}", "--until", written]) == 0

    assert cluster.spec["hold"] == {"until": until}
    assert capsys.readouterr().out == f"ns/a: held as it is until {until}\n"


def test_one_order_leaves_the_other_alone(cluster):
    """Both may be given, each ends by itself, and both are written by a manager that Flux takes nothing from."""
    for words in (["hold", "--until", "1h"], ["force", "--state", "22:00", "--until", "2h"], ["hold", "--end"]):
        assert main([words[0], f"{NS}/{PLAN}", *words[1:]]) == 0

    assert "hold" not in cluster.spec
    assert cluster.spec["force"] == {"until": "2026-12-01T14:00:00Z", "state": "22:00"}
    assert cluster.manager == FIELD_MANAGER
    assert not FIELD_MANAGER.startswith("kubectl")


@pytest.mark.parametrize(
    ("words", "order"), [(["--until", "1h"], {"until": "2026-12-01T13:00:00Z"}), (["--end"], None)]
)
def test_programs_read_the_order_as_it_is_written(cluster, capsys, words, order):
    """With the deployment that it was given to; null once it has ended."""
    assert main(["hold", f"{NS}/{PLAN}", *words, "--format", "json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"namespace": "ns", "name": "a", "hold": order}


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["hold", f"{NS}/{PLAN}", "--until", "2026-12-01T11:00:00Z"], "R503"),
        (["hold", f"{NS}/{PLAN}", "--until", "2026-12-01T14:00:00"], "R503"),
        (["hold", f"{NS}/{PLAN}", "--until", "99999999999h"], "R503"),
        (["hold", f"{NS}/{PLAN}", "--until", "9999-12-31T23:59:59-23:59"], "R503"),
        (["hold", "a/b/c", "--until", "1h"], "R501"),
        (["hold", "/a", "--until", "1h"], "R501"),
        (["hold", "ns/..", "--until", "1h"], "R501"),
        (["hold", "ns/x\n", "--until", "1h"], "R501"),
        (["hold", "N_S/x", "--until", "1h"], "R501"),
        (["hold", "other", "--until", "1h"], "R505"),
        (["force", PLAN, "--until", "1h"], "R502"),
        (["force", PLAN, "--state", "22:00", "--end"], "R502"),
        (["force", PLAN, "--state", "23:00", "--until", "1h"], "R504"),
    ],
)
def test_an_order_that_nobody_could_follow_is_refused(cluster, capsys, words, rule):
    """Here, and not by a condition of the deployment after it was written."""
    assert main(words) == 2

    assert f"[{rule}]" in capsys.readouterr().err
    assert cluster.manager is None


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["hold", PLAN, "--until", "25:00"], "R503"),
        (["hold", PLAN, "--until", "2026-12-01T14:00:00"], "R503"),
        (["force", PLAN, "--state", "25:00", "--until", "1h"], "R504"),
        (["force", PLAN, "--state", "22:00", "--until", "tomorrow"], "R503"),
    ],
)
def test_a_wrong_argument_is_refused_before_a_cluster_is_asked(monkeypatch, capsys, words, rule):
    """Whoever mistypes a time needs no kubeconfig to read that."""
    asked = []
    monkeypatch.setattr(api, "connect", asked.append)
    status = main(words)

    assert (status, asked) == (2, [])
    assert f"[{rule}]" in capsys.readouterr().err


def test_the_namespace_is_that_of_a_spec_that_names_none():
    """A person who never chose a namespace need not name it."""
    assert KubernetesSpec.model_fields["namespace"].default == NAMESPACE

"""An overlay mounts nothing over the launch file, however it spells the path."""

import pytest

from tests.planner.spec.wrong_specs import changed


def overlay(path):
    mount = {"mountPath": path, "name": "a"}
    return {
        "kubernetes.overlay": {"unit_pod": {"spec": {"containers": [{"name": "runtime", "volumeMounts": [mount]}]}}}
    }


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/etc/",
        "//etc/tidemill",
        "etc/tidemill",
        "./etc//tidemill/.",
        "/etc/tidemill/x",
        "/etc/x/../tidemill",
    ],
)
def test_a_mount_that_covers_the_launch_file_is_refused(path, problems_of):
    """The kubelet takes a relative path from the root. Where `..` leads, the links of an image decide."""
    rules = [problem.rule for problem in problems_of(changed({"change": overlay(path)}))]

    assert rules == ["S460 must leave /etc/tidemill alone"]


@pytest.mark.parametrize("path", ["/etc/tidemill2", "/etc/tide", "/models", "models/..a"])
def test_a_mount_elsewhere_is_taken(path, problems_of):
    """A name that only begins alike is another folder."""
    assert not [each for each in problems_of(changed({"change": overlay(path)})) if "S460" in each.rule]

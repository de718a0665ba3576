"""Fixtures: one control plane for the whole run, started by the first test that asks for it."""

from collections.abc import Iterator

import pytest
from kubernetes.client import ApiClient

from tests.cluster import preconditions
from tests.cluster.build import PRODUCTS, obtain
from tests.cluster.control_plane import start_control_plane
from tests.cluster.leaderworkersets import serve_leaderworkersets

BUILD_TIMEOUT_S = 45 * 60  # 7 minutes on 2 cores; the lock may make us wait for another run's build


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a control plane come last, so that it is not up beside the others, and may wait for its build."""
    items.sort(key=_uses_a_control_plane)
    for item in filter(_uses_a_control_plane, items):
        item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S))


def _uses_a_control_plane(item: pytest.Item) -> bool:
    return "control_plane" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    """The administrator's client of an API server that knows LeaderWorkerSets. Use a namespace of your own."""
    preconditions.require(preconditions.missing())
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for product in PRODUCTS:
            obtain(product)  # says that it builds, which takes minutes
    with start_control_plane(tmp_path_factory.mktemp("control-plane")) as started:
        serve_leaderworkersets(started)
        yield started.api

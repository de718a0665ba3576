"""Fixtures: each cluster is there once for the whole run, started by the first test that asks for it.

A test asks for the least it needs: `api_server` stores and judges, `control_plane` also acts, `cluster` runs pods.
Nobody waits for a build that was not asked for: what is not built yet skips its tests, except in CI, which builds it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.cluster import build, preconditions
from tests.cluster.cert_manager import serve_certificates
from tests.cluster.cluster import CLUSTER_PRODUCTS, Cluster, running_cluster
from tests.cluster.control_plane import Address, ControlPlane, running_api_server, start_controllers
from tests.cluster.definitions import OUR_DEFINITION, serve_definitions
from tests.cluster.fake_nodes import FAKE_NODE_PRODUCTS, create_nodes, h800_nodes, running_control_plane_for_fake_nodes
from tests.cluster.gitea import Gitea, running_gitea
from tests.cluster.leaderworkersets import serve_leaderworkersets
from tests.cluster.processes import Daemons
from tests.cluster.products import (
    API_SERVER,
    CERT_MANAGER_CRDS,
    CONTROLLER_MANAGER,
    ETCD,
    GITEA,
    LWS_CRDS,
    MONITOR_CRDS,
    Product,
)
from tests.cluster.runs import only_run

# Fixtures; tests without any come first.
ORDER = ("toolchain", "gitea", "api_server", "control_plane", "fake_nodes", "cluster")
BUILD_TIMEOUT_S = 45 * 60  # 25 minutes on 2 cores; the lock may make us wait for another run's build
NODE_GRACE_S = 40


def pytest_itemcollected(item: pytest.Item) -> None:
    """So that `-m "not cluster"` leaves them out."""
    if _rank(item):
        item.add_marker("cluster")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a cluster come last, so that it is not up beside the others; in CI they may wait for its build."""
    items.sort(key=_rank)
    for item in filter(_rank, items):
        item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S))


def _rank(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return max((rank for rank, name in enumerate(ORDER, start=1) if name in names), default=0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip here, before any fixture does: then `-rs` gives the reason in one line, not in one for each test."""
    if _rank(item):
        preconditions.require(_missing())
        preconditions.require_built(build.EVERYTHING)
    if "cluster" in getattr(item, "fixturenames", ()):
        preconditions.require(_missing_for_nodes())


@functools.cache
def _missing() -> list[str]:
    return preconditions.missing(build.EVERYTHING)


@functools.cache
def _missing_for_nodes() -> list[str]:
    return preconditions.missing_for_nodes()


@pytest.fixture(scope="session")
def aloud(request: pytest.FixtureRequest) -> Callable[[], AbstractContextManager[None]]:
    """A context whose words are seen while the tests run, for what takes minutes."""
    return request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled


@pytest.fixture(scope="session")
def toolchain(aloud: Callable[[], AbstractContextManager[None]]) -> Callable[..., list[Path]]:
    """The paths of the products it is called with; in CI, after building what is not there."""

    def obtain(*products: Product) -> list[Path]:
        with aloud():
            return [build.obtain(each) for each in products]

    return obtain


@pytest.fixture(scope="session")
def gitea(toolchain: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gitea]:
    """A Gitea with one user. Use a repository of your own."""
    (program,) = toolchain(GITEA)
    with running_gitea(program, tmp_path_factory.mktemp("gitea")) as started:
        yield started


@pytest.fixture(scope="session")
def api_server(
    toolchain: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server that knows our own kind, LeaderWorkerSets, PodMonitors and Certificates, and no controller.

    Use a namespace of your own.
    """
    *_, monitors = toolchain(ETCD, API_SERVER, LWS_CRDS, CERT_MANAGER_CRDS, MONITOR_CRDS)
    daemons = Daemons(tmp_path_factory.mktemp("control-plane"))
    with running_api_server(daemons, Address.on_loopback()) as started:
        serve_leaderworkersets(started)
        serve_definitions(started, [monitors, OUR_DEFINITION])
        serve_certificates(started)
        yield started


@pytest.fixture(scope="session")
def control_plane(toolchain: Callable[..., list[Path]], api_server: ControlPlane) -> ControlPlane:
    """The same with Kubernetes' controllers; there is no node, so pods stay pending. Use a namespace of your own."""
    toolchain(CONTROLLER_MANAGER)
    start_controllers(api_server, node_grace_s=NODE_GRACE_S)
    return api_server


@pytest.fixture(scope="module")
def fake_nodes(
    toolchain: Callable[..., list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane of its own with 278 nodes of 8 GPUs, whose pods run by KWOK's word alone. Needs no root.

    It goes with its module: keeping so many nodes alive takes a tenth of a core.
    """
    toolchain(*FAKE_NODE_PRODUCTS)
    with running_control_plane_for_fake_nodes(tmp_path_factory.mktemp("fake-nodes")) as started:
        create_nodes(started, h800_nodes())
        yield started


@pytest.fixture(scope="session")
def cluster(
    toolchain: Callable[..., list[Path]],
    aloud: Callable[[], AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Three real nodes with DNS and the LeaderWorkerSet controller. Use a namespace of your own."""
    toolchain(*CLUSTER_PRODUCTS)
    with ExitStack() as stack:
        with aloud():
            run = stack.enter_context(only_run())
        yield stack.enter_context(running_cluster(run, tmp_path_factory.mktemp("cluster")))

"""Fixtures of the local launcher's tests: a command that has run nothing, and the demo up and ready."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.stacks.deployments import CHECKPOINT, DEMO_SPEC, HOSTS, Tidemill, wait_until


@pytest.fixture
def tidemill(tmp_path: Path) -> Iterator[Tidemill]:
    """A command that has run nothing yet; whatever it runs is stopped at the end."""
    tidemill = Tidemill(next(HOSTS), tmp_path / "state")
    yield tidemill
    tidemill.run("down")
    wait_until(lambda: not tidemill.processes())


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidemill]:
    """The bundled demo, up and ready."""
    tidemill = Tidemill(next(HOSTS), tmp_path_factory.mktemp("demo") / "state")
    done = tidemill.up()
    assert done.returncode == 0, done.stderr
    yield tidemill
    tidemill.run("down")


@pytest.fixture(scope="session")
def spec_writer():
    """Writes the demo's spec into a folder, its paths made absolute, some fields changed; None leaves a section out."""

    def write(folder: Path, **changes: object) -> Path:
        spec = yaml.safe_load(DEMO_SPEC.read_text())
        spec["model"]["config"] = str(CHECKPOINT / "config.json")
        spec["expert_load"]["file"] = str(CHECKPOINT / "expert_load.json")
        for path, value in changes.items():
            section, _, field = path.partition("__")
            spec[section] = value if not field else {**spec[section], field: value}
        spec = {section: value for section, value in spec.items() if value is not None}
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        return folder / "spec.yaml"

    return write


@pytest.fixture
def few_ranks(write_spec) -> Path:
    """A spec of one prefill and two decode ranks, which start in half of the demo's time."""
    phases = yaml.safe_load(DEMO_SPEC.read_text())
    prefill = {**phases["prefill"], "ep_size": 1, "redundant_experts": 0}
    return write_spec(prefill=prefill, decode={**phases["decode"], "ep_size": 2})


@pytest.fixture
def write_spec(tmp_path: Path, spec_writer):
    """The same, in the test's own folder."""
    return partial(spec_writer, tmp_path)

"""Fixtures of the local launcher's tests: a command that has run nothing, and the demo up and ready."""

from collections.abc import Iterator
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


@pytest.fixture
def write_spec(tmp_path: Path):
    """A copy of the demo's spec with its paths made absolute and some fields changed; None leaves a section out."""

    def write(**changes: object) -> Path:
        spec = yaml.safe_load(DEMO_SPEC.read_text())
        spec["model"]["config"] = str(CHECKPOINT / "config.json")
        spec["expert_load"]["file"] = str(CHECKPOINT / "expert_load.json")
        for path, value in changes.items():
            section, _, field = path.partition("__")
            spec[section] = value if not field else {**spec[section], field: value}
        spec = {section: value for section, value in spec.items() if value is not None}
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        return tmp_path / "spec.yaml"

    return write

"""A checkpoint with encoders beside its text model, really up: the demo's weights under Kimi-K2.5's names."""

import pytest
import yaml

from tests.runtime.random_checkpoints import nest_beside_tower
from tests.stacks.deployments import CHECKPOINT, greedy_texts
from tests.stacks.local.test_mixed import MIXED


@pytest.mark.whole
def test_a_text_model_beside_a_tower_says_what_it_says_alone(demo, tidemill, write_spec, tmp_path):
    """Its manifest covers the tower, which no rank reads."""
    folder = nest_beside_tower(CHECKPOINT, tmp_path / "nested")
    assert tidemill.run("checkpoint", "digest", str(folder)).returncode == 0
    path = write_spec(prefill=None, decode=None, mixed=MIXED)
    spec = yaml.safe_load(path.read_text())
    spec["model"] |= {"config": str(folder / "config.json"), "checkpoint": str(folder)}
    path.write_text(yaml.safe_dump(spec))
    done = tidemill.up(path)
    assert done.returncode == 0, done.stderr

    assert greedy_texts(tidemill) == greedy_texts(demo)

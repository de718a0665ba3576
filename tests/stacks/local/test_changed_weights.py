"""A checkpoint that changes while its deployment runs: the unit that starts again gets no requests, and says why."""

import http.client
import os
import shutil
import signal
from pathlib import Path

import pytest
from openai import InternalServerError, OpenAI

from runtime.checkpoint import index_tensors, read_shards
from tests.stacks.deployments import CHECKPOINT, Tidemill, get_json, wait_until

UNIT = {"ep_size": 1, "precision": "fp32", "max_requests": 4, "max_batch_tokens": 64, "max_request_tokens": 64}
EXPERT = "model.layers.2.mlp.experts.0.down_proj.weight"
REASON = "demo-mixed-0 gets no requests: it loaded other weights (sha256:"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The demo's checkpoint without its manifest."""
    left_out = shutil.ignore_patterns("*.py", "training", "tidemill-checkpoint.json")
    return shutil.copytree(CHECKPOINT, tmp_path / "weights", ignore=left_out)


def flip(checkpoint: Path) -> None:
    """Change the highest bit of every byte of one expert's matrix, in place."""
    tensor = index_tensors(read_shards(checkpoint))[EXPERT]
    with tensor.path.open("r+b") as file:
        file.seek(tensor.start)
        content = file.read(tensor.num_bytes)
        file.seek(tensor.start)
        file.write(bytes(byte ^ 0x80 for byte in content))


def text(tidemill: Tidemill) -> str:
    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    prompt = "Return a list of"
    return client.completions.create(model="tidemill-demo", prompt=prompt, max_tokens=16, temperature=0).choices[0].text


def kill_rank(tidemill: Tidemill) -> None:
    """Kill the one rank, and the gateway, which must remember what it served with."""
    report = get_json(f"http://{tidemill.host}:8000/readyz")
    for pid in (report["units"][0]["ranks"][0]["pid"], report["pid"]):
        os.kill(pid, signal.SIGKILL)


def readiness(tidemill: Tidemill) -> int:
    """What the rank answers to a kubelet that asks whether it is ready."""
    node = http.client.HTTPConnection(tidemill.host.rpartition(".")[0] + ".2", 9400, timeout=60)
    node.request("GET", "/readyz")
    return node.getresponse().status


def unit(tidemill: Tidemill) -> dict:
    return tidemill.status()["units"][0]


@pytest.mark.whole
def test_a_changed_checkpoint_is_not_served_before_the_user_starts_it(tidemill, write_spec, checkpoint):
    """One expert's bytes change, everything is killed and starts again: no request is answered with the new weights.

    `status`, /readyz and the unit's log say why. `down` and `up` take the new weights, and say so.
    """
    model = {"config": str(checkpoint / "config.json"), "checkpoint": str(checkpoint), "name": "tidemill-demo"}
    spec = write_spec(model=model, prefill=None, decode=None, mixed=UNIT)
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    assert "other weights" not in done.stderr
    before = text(tidemill)

    flip(checkpoint)
    kill_rank(tidemill)
    wait_until(lambda: unit(tidemill).get("reason", "").startswith(REASON))
    with pytest.raises(InternalServerError):
        text(tidemill)
    report = get_json(f"http://{tidemill.host}:8000/readyz")
    (log,) = tidemill.state.glob("tidemill/demo/demo-mixed-0.*.log")
    assert not report["ready"]
    assert report["units"][0]["refused"] in unit(tidemill)["reason"]
    assert report["units"][0]["refused"] in log.read_text()
    assert tidemill.run("status").returncode == 1
    assert readiness(tidemill) == 503

    assert tidemill.run("down").returncode == 0
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    assert "serves with other weights than when this plan ran here last: its checkpoint was changed" in done.stderr
    assert text(tidemill) != before

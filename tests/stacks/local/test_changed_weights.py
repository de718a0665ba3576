"""A checkpoint that changes while its deployment runs: what starts again with it does not serve, and says why."""

import http.client
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from openai import APIConnectionError, InternalServerError, OpenAI

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


def swap_two_tokens(checkpoint: Path) -> bytes:
    """Give two tokens of the vocabulary each other's id. Return the file's content before."""
    file = checkpoint / "tokenizer.json"
    before = file.read_bytes()
    document = json.loads(before)
    ids = document["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    file.write_text(json.dumps(document))
    return before


def text(tidemill: Tidemill) -> str:
    client = OpenAI(base_url=f"http://{tidemill.host}:8000/v1", api_key="none", max_retries=0)
    prompt = "Return a list of"
    return client.completions.create(model="tidemill-demo", prompt=prompt, max_tokens=16, temperature=0).choices[0].text


def pids(tidemill: Tidemill) -> tuple[int, int]:
    """The processes of the one rank and of the gateway."""
    report = get_json(f"http://{tidemill.host}:8000/readyz")
    return report["units"][0]["ranks"][0]["pid"], report["pid"]


def kill(*processes: int) -> None:
    for pid in processes:
        os.kill(pid, signal.SIGKILL)


def readiness(tidemill: Tidemill) -> int:
    """What the rank answers to a kubelet that asks whether it is ready."""
    node = http.client.HTTPConnection(tidemill.host.rpartition(".")[0] + ".2", 9400, timeout=60)
    node.request("GET", "/readyz")
    return node.getresponse().status


def unit(tidemill: Tidemill) -> dict:
    return tidemill.status()["units"][0]


def gateway(tidemill: Tidemill) -> dict:
    return tidemill.status()["gateways"][0]


@pytest.mark.whole
def test_a_changed_checkpoint_is_not_served_before_the_user_starts_it(tidemill, write_spec, checkpoint):
    """Two tokens' ids or one expert's bytes change, and what has read them is killed: no request is answered with them.

    `status` and the log of the gateway or the unit say why. The gateway serves again once its file is put back. `down`
    and `up` take everything as it is.
    """
    model = {"config": str(checkpoint / "config.json"), "checkpoint": str(checkpoint), "name": "tidemill-demo"}
    spec = write_spec(model=model, prefill=None, decode=None, mixed=UNIT)
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    assert "other weights" not in done.stderr
    before = text(tidemill)

    tokenizer = swap_two_tokens(checkpoint)
    kill(pids(tidemill)[0])
    wait_until(lambda: "its tokenizer.json (sha256:" in unit(tidemill).get("reason", ""))
    assert unit(tidemill)["state"] == "failed"
    refused_rank, old_gateway = pids(tidemill)
    kill(old_gateway)
    wait_until(lambda: "tokenizer.json changed" in gateway(tidemill).get("reason", ""))
    with pytest.raises(APIConnectionError):
        text(tidemill)
    assert gateway(tidemill)["state"] == "failed"
    assert gateway(tidemill)["reason"] in (tidemill.state / "tidemill/demo/gateway.log").read_text()
    assert tidemill.run("status").returncode == 1
    (checkpoint / "tokenizer.json").write_bytes(tokenizer)
    kill(refused_rank)
    wait_until(lambda: gateway(tidemill)["state"] == "ready" and unit(tidemill)["state"] == "ready")
    assert text(tidemill) == before

    flip(checkpoint)
    kill(*pids(tidemill))  # which must remember what it served with
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
    swap_two_tokens(checkpoint)
    done = tidemill.up(spec)
    assert done.returncode == 0, done.stderr
    assert "serves with other weights than when this plan ran here last: its checkpoint was changed" in done.stderr
    assert text(tidemill) != before

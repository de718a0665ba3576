"""A small valid launch file as a document, with its digests computed again after a change."""

import copy
import hashlib
import json

from runtime.launch import KV_DIGEST_KEYS, UNIT_DIGEST_KEYS, canonical_digest

ZERO = "sha256:" + "0" * 64
UNIT = {
    "version": 2,
    "kind": "unit",
    "launch_digest": ZERO,
    "unit_digest": ZERO,
    "kv_digest": ZERO,
    "unit": "demo-decode-0",
    "phase": "decode",
    "device": "cpu",
    "ranks": [
        {"place": 0, "local_rank": 0, "rank": 0},
        {"place": 1, "local_rank": 0, "rank": 1},
    ],
    "places": ["node-0", "node-1"],
    "spares": ["node-7"],
    "expert_map": {
        "sha256": ZERO,
        "num_logical_experts": 3,
        "physical_to_logical": [[0, 1, 2, 0], [2, 1, 0, 1]],
    },
    "split": "equal",
    "precision": "fp32",
    "overlap": "none",
    "deterministic": False,
    "kv_cache": {"wire_version": 11, "dtype": "fp32", "bytes_per_token": 96},
    "model": {"name": "org/small"},
    "checkpoint": {"uri": "bundled:demo", "config_digest": ZERO, "weights_digest": None},
    "limits": {"max_requests": 2, "max_request_tokens": 20, "max_batch_tokens": 32, "kv_tokens": 128},
    "gateway": {"service": "demo-gateway"},
    "tls": {"gateway": "spiffe://test/gateway"},
    "ports": {"rendezvous": 29500, "places": 29501, "kv": 29600, "registry": 29700, "metrics": 29800},
}
GATEWAY = {key: UNIT[key] for key in ("version", "launch_digest", "kv_digest", "model", "checkpoint", "limits")} | {
    "kind": "gateway",
    "max_queued_requests": 3,
    "stall_timeout_s": 150,
    "resume_timeout_s": 1,
    "tls": {"units": "spiffe://test/unit/"},
    "ports": {"http": 8000, "registry": 29700, "metrics": 29800},
}


def seal(document, **changes):
    """Return a copy with `changes` (a__b names a key of a part) and all digests right."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parts, key = path.split("__")
        place = document
        for part in parts:
            place = place[part]
        place[key] = value
    if document["kind"] == "unit":
        document["expert_map"]["sha256"] = canonical_digest(document["expert_map"]["physical_to_logical"])
        document["unit_digest"] = canonical_digest({key: document[key] for key in UNIT_DIGEST_KEYS})
        document["kv_digest"] = canonical_digest({key: document[key] for key in KV_DIGEST_KEYS})
    return reseal(document)


def gateway_launch(checkpoint, ports, **changes):
    """Return a gateway's launch file for the checkpoint in a folder, with `changes` as `seal` takes them."""
    digest = hashlib.sha256((checkpoint / "config.json").read_bytes()).hexdigest()
    of_checkpoint = {"uri": str(checkpoint), "config_digest": f"sha256:{digest}", "weights_digest": None}
    return seal(GATEWAY, checkpoint=of_checkpoint, ports=ports, **changes)


def reseal(document):
    """Return a copy in which only launch_digest is made right."""
    rest = {key: value for key, value in document.items() if key != "launch_digest"}
    return {**copy.deepcopy(rest), "launch_digest": canonical_digest(rest)}


def leaf_paths(value, path=()):
    """Yield the path of every value that is neither object nor list."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaf_paths(part, (*path, key))
    else:
        yield path


def change_leaf(document, path):
    """Return a copy in which the value at `path` is another of the same type."""
    document = copy.deepcopy(document)
    *parts, key = path
    place = document
    for part in parts:
        place = place[part]
    place[key] = place[key] + 1 if isinstance(place[key], int) else (place[key] or "~")[:-1] + "~"
    return document


def write(folder, document):
    """Write the document to a file unchanged."""
    path = folder / "launch.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path

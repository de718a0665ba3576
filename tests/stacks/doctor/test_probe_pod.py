"""What the pods of a probe do, as threads on this machine's loopback address."""

import json
import threading

import pytest

from stacks.doctor import probe_pod
from tests.ports import free_ports


@pytest.fixture
def ports(monkeypatch):
    """Three free ports, where pods find each other."""
    found = free_ports(3)
    monkeypatch.setattr(probe_pod, "peer_address", lambda peer, service, port: ("127.0.0.1", found[peer]))
    return found


def run_pods(ports, folder, indices, deadline_s):
    """Run those of the pods; the last words of each."""
    words = {index: folder / f"{index}.json" for index in indices}
    threads = [
        threading.Thread(
            target=probe_pod.main,
            args=([str(index), str(len(ports)), "svc", str(ports[index]), "0.3", str(deadline_s)], str(words[index])),
        )
        for index in indices
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=30)
    return {index: json.loads(path.read_text()) for index, path in words.items()}


def test_every_pod_receives_from_every_other(ports, tmp_path):
    """And counts what came, pair by pair."""
    said = run_pods(ports, tmp_path, range(3), deadline_s=20)

    assert [each["missing"] for each in said.values()] == [[], [], []]
    for index, each in said.items():
        assert each["mb_per_s"][index] is None
        assert all(each["mb_per_s"][peer] > 0 for peer in range(3) if peer != index)


def test_a_pod_that_does_not_come_is_missed_by_all(ports, tmp_path):
    """Nothing is measured then: a part of all to all would look faster than it is."""
    said = run_pods(ports, tmp_path, (0, 2), deadline_s=1)

    assert {index: each["missing"] for index, each in said.items()} == {0: [1], 2: [1]}
    assert {rate for each in said.values() for rate in each["mb_per_s"]} == {None}


def test_it_imports_nothing_that_an_image_may_lack():
    """Images of other engines have a Python, and no package of ours."""
    from tests.test_layering import ROOT, imports

    modules = {module for module, _ in imports(ROOT / "stacks" / "doctor" / "probe_pod.py")}

    assert modules == {"json", "os", "socket", "sys", "threading", "time", "collections.abc", "pathlib"}


@pytest.mark.parametrize("is_nameless", [True, False])
def test_a_disk_is_tried_and_left_empty(tmp_path, monkeypatch, is_nameless):
    """Also where files need names, as on NFS: they lose them at once."""
    if not is_nameless:
        monkeypatch.setattr(probe_pod, "_links_nameless", lambda folder, name: False)
    monkeypatch.setattr(probe_pod, "MOST_CHUNKS", 4)

    found = probe_pod.try_disk(str(tmp_path), 0.5)

    assert found["is_nameless"] == is_nameless
    assert found["bytes"] > 2**20
    assert min(found["write_mb_per_s"], found["read_mb_per_s"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_not_there_has_a_reason():
    """The system's own words travel to whoever asked."""
    assert probe_pod.try_disk("/nowhere/kv", 0.1) == {"error": "No such file or directory"}

"""What torch.save wrote is read without torch and without unpickling; whatever could run code is refused."""

import pickle
import sys
import zipfile

import numpy as np
import pytest
import torch

from planner.facts.loads import read_loads
from planner.facts.torch_file import read_torch_file


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def changed(path, change):
    """The archive at `path` with its description changed; the new path."""
    other = path.with_name("changed.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, change(source.read(name)) if name.endswith("data.pkl") else source.read(name))
    return other


@pytest.fixture
def dump(tmp_path):
    """What SGLang's recorder writes in mode `stat`: three steps of a dense layer and two MoE layers; the path."""
    path = tmp_path / "expert_distribution_recorder_1.5.pt"
    counts = torch.tensor([[[0, 0], [1, 2], [3, 4]], [[0, 0], [10, 20], [30, 40]], [[0, 0]] * 3], dtype=torch.int32)
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None}, path)
    return path


def test_what_sglang_recorded_is_loads(dump):
    """Steps are added up, the dense layer is left out, and layer 1 is the first."""
    found = read_loads(dump, "dump.pt")

    assert (found.loads, found.first_layer) == (((11, 22), (33, 44)), 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_saved_tensor_is_the_same_array(tmp_path, dtype):
    """Counts and their means come in any of these kinds of number."""
    tensor = torch.arange(24, dtype=dtype).reshape(2, 3, 4)
    torch.save(tensor, tmp_path / "tensor.pt")
    array = read_torch_file(tmp_path / "tensor.pt")

    assert array.dtype == tensor.numpy().dtype
    assert np.array_equal(array, tensor.numpy())


def test_plain_values_are_the_same(tmp_path):
    """Dicts, lists, tuples, numbers, texts, and texts that stand in the file twice."""
    shared = [1, -2, 300, 70_000, 2**40, 0.5, "text", None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    saved = {"a": shared, "b": {"c": list(shared), 7: {}}, "d": []}
    torch.save(saved, tmp_path / "values.pt")

    assert read_torch_file(tmp_path / "values.pt") == saved


def test_code_in_a_file_is_refused_and_does_not_run(tmp_path):
    """S604: the file names `open`, which makes a file when it is unpickled and is only a name here."""
    torch.save({"logical_count": Runs(tmp_path / "ran")}, tmp_path / "dump.pt")
    finding = read_loads(tmp_path / "dump.pt", "dump.pt")

    assert finding.rule == "S604 must be .npy, .pt or JSON"
    assert finding.reason in {f"it holds more than plain values and tensors ({of} open)" for of in ("io", "_io")}
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_is_refused(tmp_path):
    """What is no zip archive was not written by torch.save."""
    (tmp_path / "dump.pt").write_bytes(pickle.dumps({"logical_count": [[1]]}))

    assert read_loads(tmp_path / "dump.pt", "dump.pt").reason == "it is torn, or torch.save did not write it"


def test_nothing_that_the_file_names_is_imported(dump):
    """A module by the name that the file says instead of torch's stays unknown."""
    other = changed(dump, lambda pickled: pickled.replace(b"ctorch._utils\n", b"cthis\n"))

    with pytest.raises(ValueError, match="this _rebuild_tensor_v2"):
        read_torch_file(other)
    assert "this" not in sys.modules


def test_torn_files_are_refused_whatever_is_torn(dump):
    """Every byte of the description cut off or changed: a value, or ValueError, and nothing else."""
    with zipfile.ZipFile(dump) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        size = len(archive.read(name))
    outcomes = set()
    for place in range(size):
        for change in (lambda it, at=place: it[:at], lambda it, at=place: it[:at] + b"R" + it[at + 1 :]):
            try:
                read_torch_file(changed(dump, change))
            except ValueError:
                outcomes.add("refused")

    assert outcomes == {"refused"}


def test_a_compressed_tensor_is_refused(dump):
    """torch compresses none, and a small file could unpack to one of any size."""
    other = dump.with_name("compressed.pt")
    with zipfile.ZipFile(dump) as source, zipfile.ZipFile(other, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))

    with pytest.raises(ValueError, match="compressed"):
        read_torch_file(other)


@pytest.mark.parametrize(
    "tensor", [torch.arange(6).reshape(2, 3).T, torch.arange(6)[2:], torch.arange(6)[:3], torch.ones(3).half()]
)
def test_tensors_that_are_not_whole_are_refused(tmp_path, tensor):
    """Turned, a part of another, or of other numbers: never read wrong."""
    torch.save(tensor, tmp_path / "tensor.pt")

    with pytest.raises(ValueError, match=r"not whole|its numbers are of HalfStorage"):
        read_torch_file(tmp_path / "tensor.pt")


def test_what_was_recorded_in_another_mode_is_described(tmp_path):
    """Counts of slots in single passes are no load of experts."""
    torch.save({"records": [{"rank": 0}], "last_physical_to_logical_map": torch.ones(2, 2)}, tmp_path / "dump.pt")

    assert read_loads(tmp_path / "dump.pt", "dump.pt").reason == "SGLang recorded it in another mode than stat"


def with_description(path, pickled):
    """A file that describes its object by `pickled`; the path."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
    return path


ENDLESS = {
    "a key that takes for ever to hash": b"})" + b"".join(b"q%ch%ch%c\x86" % (i, i, i) for i in range(60)) + b"Ns.",
    "a key too deep to hash": b"})" + b"\x85" * 900_000 + b"Ns.",
    "one list, often": b"]q\x00](h\x00" + b"h\x00" * 1000 + b"e.",
    "a list in itself": b"]q\x00h\x00a.",
}


@pytest.mark.parametrize("pickled", ENDLESS.values(), ids=ENDLESS)
def test_a_small_file_never_becomes_a_huge_object(tmp_path, pickled):
    """What would take the interpreter's stack, or time without end, is refused before it is made."""
    path = with_description(tmp_path / "dump.pt", b"\x80\x02" + pickled)

    with pytest.raises(ValueError, match=r"as a key|twice"):
        read_torch_file(path)


def test_a_load_that_is_no_number_is_named_by_its_type(tmp_path):
    """S605: a container may be of any size, or hold what no message can show."""
    torch.save([[{"a": torch.ones(2)}]], tmp_path / "dump.pt")

    assert read_loads(tmp_path / "dump.pt", "dump.pt").reason == "layer 0, expert 0 is of type dict"

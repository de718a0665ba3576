"""A name of a GPU is the catalog's where it says the same chip, board and memory, and another GPU's otherwise."""

import pytest

from planner.facts.catalog import same_gpu, unplanned_gpu

SAME = {
    "NVIDIA-H100-80GB-HBM3": "h100",
    "H200-141GB": "h200",
    "H20-96GB": "h20",
    "8xH100": "h100",
    "GB200-NVL72": "gb200",
    "AMD_Instinct_MI300X_OAM": "mi300x",
}
OTHERS = ("H20-141GB", "H20-3e", "L20", "GB200-NVL4", "h100-nvl", "h100-pcie", "h200-nvl", "h100-sxm5-96gb", "rtx5090")
MIG = "nvidia-h100-mig-1g.10gb"


@pytest.mark.parametrize(("written", "name"), SAME.items())
def test_the_same_gpu_is_found_under_other_names(written, name):
    """Makers, boards and the memory that it is sold with change nothing."""
    assert same_gpu(written) == name
    assert unplanned_gpu(written) is None


@pytest.mark.parametrize("written", [*OTHERS, MIG])
def test_another_board_or_memory_is_another_gpu(written):
    """Its figures are not the catalog's."""
    assert same_gpu(written) is None
    assert unplanned_gpu(written) == written.casefold()


@pytest.mark.parametrize("written", ["auto", "h80", "h300", "h20x", "mi300", "h00", "own"])
def test_a_name_that_could_be_anything_is_nobodys(written):
    """It could be several, or none."""
    assert same_gpu(written) is None
    assert unplanned_gpu(written) is None

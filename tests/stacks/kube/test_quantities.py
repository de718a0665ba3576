"""Kubernetes' quantities, read and written."""

from decimal import Decimal

import pytest

from stacks.kube.quantities import amount_text, amounts


def test_quantities_are_read_exactly():
    """Whatever their suffix; a plain number is one too, and nothing is nothing."""
    assert amounts({"cpu": "500m", "memory": "2Gi", "disk": "1G", "nvidia.com/gpu": 8}) == {
        "cpu": Decimal("0.5"),
        "memory": Decimal(2**31),
        "disk": Decimal(10**9),
        "nvidia.com/gpu": Decimal(8),
    }
    assert amounts(None) == {}


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (Decimal(8), "8"),
        (Decimal("0.5"), "0.5"),
        (Decimal(0), "0"),
        (Decimal(1000), "1000"),
        (Decimal(2**31), "2Gi"),
        (Decimal(3 * 2**29), "1536Mi"),
        (Decimal(2**30 - 1), "1073741823"),
    ],
)
def test_amounts_are_written_as_people_write_them(amount, text):
    """In the largest unit that leaves a whole number."""
    assert amount_text(amount) == text

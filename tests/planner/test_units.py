"""Quantities: what can be written, and what it becomes."""

from typing import Annotated

import pytest
from pydantic import BaseModel, ValidationError

from planner.units import byte_quantity, gb, link_quantity, time_quantity


class Quantities(BaseModel):
    size: Annotated[int, *byte_quantity] = 0
    link: Annotated[float, *link_quantity] = 0
    time: Annotated[float, *time_quantity] = 0


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("size", "80GiB", 80 * 2**30),
        ("size", "80 GB", 80_000_000_000),
        ("size", "0.5MiB", 524_288),
        ("link", "400Gbps", 400),
        ("link", "50GB/s", 400),
        ("time", "50ms", 0.05),
        ("time", "2h", 7200),
    ],
)
def test_a_quantity_is_read_with_its_unit(field, written, value):
    """Bytes, gigabits a second, seconds."""
    assert getattr(Quantities(**{field: written}), field) == value


@pytest.mark.parametrize(
    "written", ["80", 80, "GiB", "80gib", "-1GiB", "0GiB", "0.4B", "1e3GB", "80GiB/s", "80  GiB", "", None, True]
)
def test_what_leaves_the_unit_open_is_refused(written):
    """No unit, an unknown one, a sign, or no text at all."""
    with pytest.raises(ValidationError):
        Quantities(size=written)


def test_gigabytes_are_powers_of_ten():
    """As sizes are printed."""
    assert gb(43_100_000_000) == "43.1 GB"

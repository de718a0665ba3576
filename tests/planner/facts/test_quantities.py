"""Quantities: what can be written, and what it becomes."""

from typing import Annotated

import pytest
from pydantic import BaseModel, ValidationError

from planner.facts.quantities import gb, quantity, respell_quantity


class Quantities(BaseModel):
    size: Annotated[int, *quantity("bytes")] = 0
    link: Annotated[float, *quantity("link")] = 0
    time: Annotated[float, *quantity("time", least="10ms", most="24h")] = 1


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
        ("time", "24h", 86_400),
        ("time", "10ms", 0.01),
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


@pytest.mark.parametrize("written", ["9ms", "25h"])
def test_a_quantity_outside_its_range_is_refused(written):
    """Bounds are quantities too, and both ends belong to the range."""
    with pytest.raises(ValidationError, match=r"at least 10ms|at most 24h"):
        Quantities(time=written)


@pytest.mark.parametrize(
    ("kind", "written", "meant"),
    [
        ("bytes", "512Gi", "512GiB"),
        ("bytes", "80gb", "80GB"),
        ("link", "400Gb/s", "400Gbps"),
        ("link", "50GBps", "50GB/s"),
        ("time", "5m", "5min"),
        ("bytes", "80", None),
        ("bytes", "0GiB", None),
        ("time", "5 fortnights", None),
        ("time", None, None),
    ],
)
def test_units_of_others_are_recognised(kind, written, meant):
    """Kubernetes', ethtool's and systemd's, and ours in other letters."""
    assert respell_quantity(kind, written) == meant


def test_gigabytes_are_powers_of_ten():
    """As sizes are printed."""
    assert gb(43_100_000_000) == "43.1 GB"

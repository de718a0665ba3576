"""What ranks say of a unit's epoch is read, or refused with ValueError, which is what callers expect."""

import pytest

from stacks.measured.epochs import InService, read_in_service

EPOCH = {"number": 1, "digest": "sha256:1"}
SAID = EPOCH | {"unit_digest": "sha256:0", "physical_to_logical": [[0, 1, 0]], "unit": "demo-decode-0"}


def test_the_map_in_service_is_read():
    """A rank's page says more than its map."""
    assert read_in_service(SAID) == InService(1, [[0, 1, 0]], "sha256:0", "sha256:1")


@pytest.mark.parametrize(
    "said",
    [
        None,
        [SAID],
        {},
        SAID | {"number": -1},
        SAID | {"number": "1"},
        SAID | {"number": 2**70},
        SAID | {"unit_digest": None},
        SAID | {"digest": None},
        SAID | {"physical_to_logical": 3},
        SAID | {"physical_to_logical": [3]},
        SAID | {"physical_to_logical": [[0.5]]},
        SAID | {"physical_to_logical": [[True]]},
        SAID | {"physical_to_logical": [[-1]]},
        SAID | {"physical_to_logical": [[2**70]]},
    ],
)
def test_what_is_no_epoch_is_refused(said):
    """A forged page ends neither the controller nor `tidemill up`."""
    with pytest.raises(ValueError, match=r"[Ii]nput|Field|valid"):
        read_in_service(said)

"""A decode rank's room for dispatched rows is as large as its plan says."""

from hypothesis import given
from hypothesis import strategies as st

from planner.layout.working_memory import TILE_ROWS, fill_tiles
from runtime.expert_parallel.factory import _fill_tiles


@given(tokens=st.integers(1, 1024), num_ranks=st.integers(1, 320))
def test_room_ends_with_a_whole_tile(tokens, num_ranks):
    """And is the least that does, for the planner as for the runtime."""
    room = fill_tiles(tokens, num_ranks)

    assert room == _fill_tiles(tokens, num_ranks, TILE_ROWS)
    assert room * num_ranks % TILE_ROWS == 0
    assert all(less * num_ranks % TILE_ROWS for less in range(tokens, room))

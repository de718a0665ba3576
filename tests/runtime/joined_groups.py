"""The ranks of a unit in one process, as gloo groups that have met."""

from concurrent.futures import ThreadPoolExecutor

from runtime.expert_parallel.group import GlooGroup
from runtime.expert_parallel.rendezvous import MeetingPoint

__all__ = ["joined_groups"]

ADDRESS = "127.0.0.1"


def joined_groups(size, port):
    """Return a group for each rank, joined at `port` on loopback."""
    groups = [GlooGroup(rank, size) for rank in range(size)]
    meetings = [MeetingPoint(ADDRESS, port, rank == 0, ADDRESS) for rank in range(size)]
    with ThreadPoolExecutor(size) as ranks:
        list(ranks.map(GlooGroup.join, groups, meetings))
    return groups

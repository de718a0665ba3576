"""The host tier and its ledger against a slow reference: blocks come back as they went, and requests come first."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink, PendingCopy
from runtime.kv.host_memory import HostMemory
from runtime.kv.index import HASH_BYTES
from runtime.kv.tiers.host import PINNED_BLOCKS, HostTier

BLOCK_SHAPE = (2, 3, 1)
BLOCK_BYTES = 24
TENANT = 1
MAX_BLOCKS, MAX_BYTES = 2, 4 * BLOCK_BYTES  # of the tier; of all that is held
NAMES = [number.to_bytes(HASH_BYTES) for number in range(5)]
runs_of_names = st.tuples(st.integers(0, 4), st.integers(1, 3)).map(lambda run: NAMES[run[0] :][: run[1]])


def block(name):
    """What a block of this name must hold."""
    return torch.full(BLOCK_SHAPE, float(name[-1]))


class Copies(HostLink):
    """Copies in two queues, one for each direction, which run when they are joined or `go_on`."""

    def __init__(self, pins=False):
        self.pins, self.to_device, self.from_device = pins, Queue(), Queue()

    def begin_copy_to_device(self, copy):
        return self.to_device.begin(copy)

    def begin_copy_from_device(self, copy):
        return self.from_device.begin(copy)


class Queue:
    def __init__(self):
        self.begun, self.num_done = [], 0

    def begin(self, copy):
        self.begun.append(copy)
        return PendingCopy(self, len(self.begun), copy)

    def has_passed(self, mark):
        return self.num_done >= mark

    def join(self, mark):
        while self.num_done < mark:
            self.begun[self.num_done]()
            self.num_done += 1


class TierAgainstReference(RuleBasedStateMachine):
    """Blocks are saved and loaded, requests take memory and give it back; `kept` says what the tier may have."""

    def __init__(self):
        super().__init__()
        self.memory = HostMemory(MAX_BYTES)
        self.tier = HostTier(BLOCK_SHAPE, torch.float32, MAX_BLOCKS * BLOCK_BYTES, Copies(), self.memory)
        self.saving, self.kept, self.loading, self.held = [], [], [], []
        self.num_arrived = 0  # since the last turn, until which their slots are held

    @rule(offered=runs_of_names)
    def save(self, offered):
        """Turn to the next step: what was saved is there. Pages are written again then."""
        self.tier.fence_saves()
        self.num_arrived = 0
        for page, name in self.saving:
            page.fill_(-1)
            self.kept.append(name)
        self.saving = [(block(name), name) for name in offered]
        self.tier.save([(name, TENANT, page) for page, name in self.saving])

    @rule(wanted=runs_of_names)
    def load(self, wanted):
        """Whatever is found was saved; what it holds is seen when it is there."""
        pages = [torch.zeros(BLOCK_SHAPE) for _ in wanted]
        number, arrival = self.tier.load(wanted, pages)
        assert self.tier.num_found(wanted) == number
        assert set(wanted[:number]) <= set(self.kept)
        assert (arrival is None) == (number == 0)
        if number:
            self.loading.append((arrival, list(zip(pages, wanted[:number], strict=False))))

    @precondition(lambda self: self.loading)
    @rule()
    def arrive(self):
        arrival, loaded = self.loading.pop(0)
        arrival.join()
        self.num_arrived += len(loaded)
        for page, name in loaded:
            assert torch.equal(page, block(name))

    @rule(holder=st.sampled_from(("arriving", "swapped")), num_blocks=st.integers(1, 5))
    def take(self, holder, num_blocks):
        """A request is refused only where it and all that cannot give way are more than there is."""
        num_bytes = num_blocks * BLOCK_BYTES
        latents = torch.empty(num_bytes // 4)
        held = sum(each.nbytes for _, each in self.held)
        if self.memory.take(holder, num_bytes):
            self.memory.watch(holder, latents)
            self.held.append((holder, latents))
        else:
            num_busy = len(self.saving) + self.num_arrived + sum(len(loaded) for _, loaded in self.loading)
            assert held + num_bytes + num_busy * BLOCK_BYTES > MAX_BYTES

    @precondition(lambda self: self.held)
    @rule()
    def drop(self):
        self.held.pop()

    @invariant()
    def nobody_has_more_than_the_ledger_says(self):
        held, requests = self.memory.reserved_bytes(), Counter()
        for holder, latents in self.held:
            requests[holder] += latents.nbytes
        assert sum(held.values()) <= MAX_BYTES
        assert {"arriving": held["arriving"], "swapped": held["swapped"]} == {"arriving": 0, "swapped": 0} | requests
        assert (
            MAX_BLOCKS * BLOCK_BYTES
            >= held["blocks"]
            >= sum(self.tier.num_found([name]) for name in NAMES) * BLOCK_BYTES
        )

    def teardown(self):
        """When all copies have ended and a request needs everything, nothing is left of the tier."""
        for arrival, _ in self.loading:
            arrival.join()
        self.tier.fence_saves()
        self.held.clear()
        assert self.memory.take("arriving", MAX_BYTES)
        assert self.memory.reserved_bytes() == {"arriving": MAX_BYTES, "swapped": 0, "blocks": 0}


TestTierAgainstReference = TierAgainstReference.TestCase
TestTierAgainstReference.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_slot_goes_to_no_other_block_while_it_is_read():
    """Copies to the host have their own queue, so a later one may end first. The other block is not kept then."""
    link = Copies()
    tier = HostTier(BLOCK_SHAPE, torch.float32, BLOCK_BYTES, link, HostMemory())
    page = torch.zeros(BLOCK_SHAPE)
    tier.save([(NAMES[1], TENANT, block(NAMES[1]))])
    tier.fence_saves()
    _, arrival = tier.load(NAMES[1:2], [page])
    tier.save([(NAMES[2], TENANT, block(NAMES[2]))])
    tier.fence_saves()
    arrival.join()

    assert torch.equal(page, block(NAMES[1]))
    assert tier.num_found(NAMES[2:3]) == 0


def test_lent_memory_is_nobody_elses_until_it_is_dropped():
    """A slower tier fills it, and the block is found; or it gives up, and the slot is free again."""
    memory = HostMemory()
    tier = HostTier(BLOCK_SHAPE, torch.float32, BLOCK_BYTES, HostLink(), memory)
    given_up = tier.lend_blank()
    refused = tier.lend_blank()
    del given_up
    tier.fence_saves()
    after = memory.reserved_bytes()["blocks"]
    filled = tier.lend_blank()
    filled.copy_(block(NAMES[1]))
    tier.add(NAMES[1], filled, b"tenant")
    del filled
    tier.fence_saves()
    written = tier.lend(NAMES[1])
    refused_too = tier.lend_blank()

    assert (refused, after, refused_too) == (None, 0, None)
    assert torch.equal(written, block(NAMES[1]))
    assert tier.lend(NAMES[2]) is None
    assert memory.reserved_bytes()["blocks"] == BLOCK_BYTES


def test_a_block_that_is_being_copied_is_nobody_elses():
    """Ordering the device's later work after the copy does not make the host wait for it."""
    link = Copies()
    tier = HostTier(BLOCK_SHAPE, torch.float32, BLOCK_BYTES, link, HostMemory())
    finish, link.from_device.join = link.from_device.join, lambda mark: None
    tier.save([(NAMES[1], TENANT, block(NAMES[1]))])
    during = tier.fence_saves(), tier.lend(NAMES[1]), tier.lend_blank()
    finish(1)
    after = tier.fence_saves()

    assert during == ([], None, None)
    assert after == [NAMES[1]]
    assert torch.equal(tier.lend(NAMES[1]), block(NAMES[1]))


def test_the_least_recently_used_block_goes_first():
    """A block that is loaded, or offered again, is used."""
    tier = HostTier(BLOCK_SHAPE, torch.float32, 3 * BLOCK_BYTES, HostLink(), HostMemory())
    for offered in (NAMES[:3], NAMES[:1], NAMES[3:]):
        tier.save([(name, TENANT, block(name)) for name in offered])
        tier.fence_saves()
        tier.load(NAMES[1:2], [torch.zeros(BLOCK_SHAPE)])

    assert [tier.num_found([name]) for name in NAMES] == [0, 1, 0, 1, 1]


def test_a_block_that_is_here_is_no_copy():
    """So a prompt that was found, and whose pages are free again, delays the copies of none that was computed."""
    tier = HostTier(BLOCK_SHAPE, torch.float32, 4 * BLOCK_BYTES, HostLink(), HostMemory())
    tier.save([(name, TENANT, block(name)) for name in NAMES[:2]])
    tier.fence_saves()
    due = iter([(name, TENANT, block(name)) for name in NAMES])
    tier.save(due, max_copies=1)
    tier.fence_saves()

    assert [tier.num_found([name]) for name in NAMES] == [1, 1, 1, 0, 0]
    assert [name for name, *_ in due] == NAMES[3:]


def test_a_flood_of_one_tenant_leaves_another_tenants_blocks_in_memory():
    """A tenant who saves many blocks replaces his own while he has more than the other."""
    tier = HostTier(BLOCK_SHAPE, torch.float32, 3 * BLOCK_BYTES, HostLink(), HostMemory())
    for tenant, name in [(TENANT, NAMES[0]), *((2, name) for name in NAMES[1:])]:
        tier.save([(name, tenant, block(name))])
        tier.fence_saves()

    assert [tier.num_found([name]) for name in NAMES] == [1, 0, 0, 1, 1]


def test_memory_is_pinned_at_once_in_powers_of_two():
    """Torch pins no other sizes; what a block's size leaves over is less than a sixteenth."""
    pinned = []
    link = Copies(pins=True)
    link.empty = lambda shape, dtype: pinned.append(tuple(shape)) or torch.empty(shape, dtype=dtype)
    HostTier(BLOCK_SHAPE, torch.float32, 2000, link, HostMemory())
    chunk_bytes = 512

    assert chunk_bytes >= PINNED_BLOCKS * BLOCK_BYTES
    assert pinned == [(chunk_bytes // BLOCK_BYTES, *BLOCK_SHAPE)] * (2000 // chunk_bytes)


def test_memory_that_cannot_be_pinned_is_one_sentence():
    """The rank ends with it before it is ready."""

    def fail(shape, dtype):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    with pytest.raises(RuntimeFailure) as error:
        HostTier((1, 2**20, 1), torch.float32, 2**32, SimpleNamespace(empty=fail, pins=True), HostMemory())

    assert str(error.value) == "4.3 GB of host memory cannot be pinned for KV: CUDA error: out of memory"

"""The compiled search against the same steps counted slowly, and its library against its sources."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.expert_map import native
from planner.expert_map.native import BARRED, Search
from planner.expert_map.native import build as native_build
from planner.expert_map.types import Sizes
from tests.planner.expert_map.split_reference import carried_under

pytestmark = pytest.mark.slow

FREE = 0.2  # slots that a step without cost counts as


@dataclass(frozen=True)
class Case:
    """One layer: loads, the experts on each GPU, and what the search has to keep to."""

    loads: np.ndarray  # [E]
    gpus: list[list[int]]
    search: Search

    def gpu_loads(self, gpus):
        """What each GPU carries, `[G]`, each replica's part rounded down."""
        loads, total = self.loads, np.zeros(len(gpus))
        for expert in range(len(loads)):
            alone = np.where(np.arange(len(loads)) == expert, loads, 0.0)
            if self.search.split != "equal":
                total += np.floor(carried_under(self.search.split, alone, np.array(gpus), self.search.num_nodes))
                continue
            holders = [gpu for gpu, held in enumerate(gpus) if expert in held]
            total[holders] += np.floor(loads[expert] / len(holders))
        return total

    def may_be(self, gpus):
        """Whether every expert is where it may be, once on a GPU, and in two domains of every partition."""
        experts = range(len(self.loads))
        holders = [[gpu for gpu, held in enumerate(gpus) if expert in held] for expert in experts]
        prices = self.search.prices_LEG[0]
        return (
            all(holders)
            and all(len(set(held)) == len(held) for held in gpus)
            and all(prices[expert, gpu] < BARRED for expert in experts for gpu in holders[expert])
            and all(len({domains[gpu] for gpu in on}) > 1 for domains in self.search.domains for on in holders)
        )

    def price(self, gpus):
        """What all experts cost where they are."""
        return sum(int(self.search.prices_LEG[0, expert, gpu]) for gpu, held in enumerate(gpus) for expert in held)

    def steps(self, gpus, hot):
        """Every map that one step makes of this one, GPU by GPU.

        A slot of the hot GPU is swapped with one of an emptier GPU. Or an expert of the hot GPU takes a slot anywhere,
        or any expert takes one of the hot GPU's.
        """
        gpu_loads, slots = self.gpu_loads(gpus), range(len(gpus[0]))
        for gpu in range(len(gpus)):
            for slot, other in product(slots, slots) if gpu_loads[gpu] < gpu_loads[hot] else ():
                after = [list(held) for held in gpus]
                after[hot][slot], after[gpu][other] = gpus[gpu][other], gpus[hot][slot]
                yield after
        for gpu in range(len(gpus)):
            for slot, comer in product(slots, range(len(self.loads)) if gpu == hot else gpus[hot]):
                after = [list(held) for held in gpus]
                after[gpu][slot] = comer
                yield after

    def gain(self, before, after, top):
        """How much lower the GPUs that the step touches are, for each slot that it changes."""
        moved = {expert for one, other in zip(before, after, strict=True) for expert in set(one) ^ set(other)}
        counts = [Counter(chain(*gpus)) for gpus in (before, after)]
        only_swaps = self.search.split == "equal" and counts[0] == counts[1]
        touched = [
            gpu
            for gpu, (one, other) in enumerate(zip(before, after, strict=True))
            if set(one) != set(other) or (moved & set(one) and not only_swaps)
        ]
        most = self.gpu_loads(after)[touched].max()
        cost = max(self.price(after) - self.price(before), FREE)
        return (top - max(most, self.search.target_L[0])) / cost if most < top else 0.0


def slowly(case):
    """Step by step: of all that relieve the fullest GPU the one that gains most, with everything counted anew."""
    gpus = case.gpus
    while True:
        gpu_loads = case.gpu_loads(gpus)
        top, hot = gpu_loads.max(), int(gpu_loads.argmax())
        if top <= case.search.target_L[0]:
            return gpus
        steps = [each for each in case.steps(gpus, hot) if each != gpus and case.may_be(each)]
        found = [(gain, each) for each in steps if (gain := case.gain(gpus, each, top)) > 0]
        if not found:
            return gpus
        gpus = max(found, key=lambda each: each[0])[1]


@st.composite
def cases(draw):
    """Small layers with some of the constraints each."""
    num_nodes, per_node, per_gpu = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    num_gpus = max(num_nodes * per_node, 2)
    num_nodes = num_nodes if num_gpus % num_nodes == 0 else 1
    num_experts = draw(st.integers(per_gpu + 1, max(num_gpus * per_gpu, per_gpu + 1)))
    loads = draw(st.lists(st.integers(0, 1000), min_size=num_experts, max_size=num_experts))
    start = native.pack(np.array([loads], dtype=float), Sizes(num_gpus * per_gpu, num_gpus))[0][0].tolist()
    domains = draw(st.sampled_from([(), (tuple(range(num_gpus)),), (tuple(gpu // 2 for gpu in range(num_gpus)),)]))
    possible, random = (
        draw(st.sampled_from([[0], [1], [0, 1, 2], [0, 1, BARRED]])),
        draw(st.randoms(use_true_random=False)),
    )
    prices = [[0 if expert in held else random.choice(possible) for held in start] for expert in range(num_experts)]
    search = Search(
        target_L=np.array([draw(st.floats(0.5, 1.5)) * sum(loads) / num_gpus]),
        num_nodes=num_nodes,
        split=draw(st.sampled_from(["equal", "local_first", "first_on_node"])),
        prices_LEG=np.array([prices], dtype=np.uint8),  # also where all is free: else the quick search would do it
    )
    case = Case(np.array(loads, dtype=float), start, search)
    covered = replace(case, search=replace(search, domains=domains))
    return covered if covered.may_be(start) else case


@given(cases())
def test_the_search_makes_the_steps_that_counting_everything_anew_finds(case):
    """A descent of the compiled search ends no higher than the slow one, and keeps to every constraint."""
    (found,), (fullest,) = native.improve(case.loads[None], np.array([case.gpus]), case.search)
    expected = slowly(case)
    ours, theirs = case.gpu_loads(found.tolist()).max(), case.gpu_loads(expected).max()

    assert case.may_be(found.tolist())
    assert fullest == ours
    assert ours == theirs or max(ours, theirs) <= case.search.target_L[0]
    assert case.search.prices_LEG.any() or [set(held) for held in found.tolist()] == [set(held) for held in expected]


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_an_unconstrained_search_ends_when_no_step_helps(num_gpus, per_gpu, seed):
    """At the end no swap and no hand-over relieves the fullest GPU."""
    random = np.random.default_rng(seed)
    num_experts = random.integers(per_gpu, num_gpus * per_gpu, endpoint=True)
    loads = np.floor(1000 * random.pareto(1.2, (1, num_experts)))
    start = native.pack(loads, Sizes(num_gpus * per_gpu, num_gpus))[0]
    found, (fullest,) = native.improve(loads, start, Search(target_L=np.zeros(1)))
    free = Search(target_L=np.zeros(1), prices_LEG=np.zeros((1, num_experts, num_gpus), np.uint8))
    ended = Case(loads[0], found[0].tolist(), free)
    gpu_loads = ended.gpu_loads(ended.gpus)
    steps = ended.steps(ended.gpus, int(gpu_loads.argmax()))

    assert fullest == gpu_loads.max()
    assert not any(
        ended.gain(ended.gpus, each, fullest) > 0 for each in steps if each != ended.gpus and ended.may_be(each)
    )


def test_a_library_built_from_other_sources_is_refused(monkeypatch):
    """Whoever edits the C files and does not build is told the command."""
    monkeypatch.setattr(native, "digest", lambda: "another")
    with pytest.raises(ImportError, match=r"was built from other C files .*: run python .*build\.py"):
        native._load()


def test_no_steps_are_fused_and_sources_have_one_digest():
    """The flags that make maps the same on every machine; and the digest is that of the library that is loaded."""
    assert "-ffp-contract=off" in native_build.FLAGS
    assert not any("fast" in flag or "march" in flag for flag in native_build.FLAGS)
    assert native._library.digest().decode() == native_build.digest()

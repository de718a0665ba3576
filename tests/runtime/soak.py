"""Random requests against one rank's real engine: `python -m tests.runtime.soak NUMBER [SEED]`.

Prompts and answers of any length up to the limits, greedy or drawn, penalised or not; they come at any time, and one in
six is no longer wanted at some point. The cache is small, so that requests are preempted all the time; prompts are
computed in small chunks. As one mixed rank, and as a prefill and a decode rank.

Every answer must be that of the request alone (of an aborted one, its beginning), no page may stay behind, and memory
must not grow: what `Report` says, and `Report.is_clean` asks.
"""

import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.engine import Engine
from runtime.kv_cache import PAGE_TOKENS
from runtime.messages import Sampling
from runtime.parallel import SoloGroup
from tests.runtime.one_rank import Limits, Rank, Wish, answer_alone
from tests.runtime.random_checkpoints import V3, write_checkpoint

LIMITS = Limits(max_requests=6, max_request_tokens=224, max_batch_tokens=48, kv_tokens=256)
MAX_POSITIONS = 256
MAX_TOKENS = 16
ABORTED = 1 / 6
GREEDY = 1 / 2
ARRIVAL = 0.6
STOP_IDS = [7]
MAX_GROWTH_BYTES = 8_000_000  # measured: 0.4 at most; allocators keep what they once had


@dataclass(frozen=True)
class Report:
    """What a soak found. Memory is what the process has after the first half and at the end."""

    answered: int
    aborted: int
    preemptions: int
    pages_left_behind: int
    wrong: list[str]
    half_time_bytes: int
    end_bytes: int

    @property
    def growth_bytes(self) -> int:
        """In the second half."""
        return self.end_bytes - self.half_time_bytes

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong, nothing stayed."""
        return not self.wrong and not self.pages_left_behind and self.growth_bytes < MAX_GROWTH_BYTES

    def __str__(self) -> str:
        return (
            f"{self.answered} answered, {self.aborted} aborted, {self.preemptions} preemptions;"
            f" {len(self.wrong)} wrong answers, {self.pages_left_behind} pages left behind,"
            f" {self.end_bytes / 1e6:.0f} MB at the end, {self.growth_bytes / 1e6:.1f} MB more than at half time"
        )


def soak(engine: Engine, kind: str, number: int, seed: int) -> Report:
    """Serve `number` random requests as `kind` ("mixed" or "pair")."""
    draw = random.Random(seed)
    rank = Rank(engine, kind, LIMITS)
    wrong: list[str] = []
    answered = aborted = half_time_bytes = 0
    waiting = [_wish(draw, f"{kind} {turn}") for turn in range(number)]
    here: dict[str, Wish] = {}
    unwanted: dict[str, int] = {}  # request -> the step from which nobody wants it
    step = 0
    while waiting or here:
        while waiting and draw.random() < ARRIVAL:
            wish = waiting.pop()
            here[wish.id] = wish
            rank.ask(wish)
            if draw.random() < ABORTED:
                unwanted[wish.id] = step + draw.randrange(60)
        for request_id in [each for each, when in unwanted.items() if when <= step and each in here]:
            rank.abort(request_id)
            aborted += _take_away(rank, here, request_id, engine, wrong)
        rank.step()
        step += 1
        for request_id in list(rank.done):
            answered += _take_away(rank, here, request_id, engine, wrong)
        if not half_time_bytes and answered + aborted >= number // 2:
            half_time_bytes = _resident_bytes()
    caches = [scheduler.cache for scheduler in rank.schedulers]
    return Report(
        answered,
        aborted,
        sum(scheduler.num_preemptions for scheduler in rank.schedulers),
        sum(cache.num_pages - cache.num_free_pages for cache in caches),
        wrong,
        half_time_bytes,
        _resident_bytes(),
    )


def small_engine(folder: Path) -> Engine:
    """A small random V3 in deterministic mode."""
    checkpoint = write_checkpoint(folder / "checkpoint", V3 | {"max_position_embeddings": MAX_POSITIONS})
    experts = [list(range(V3["n_routed_experts"]))] * (V3["num_hidden_layers"] - V3["first_k_dense_replace"])
    return Engine(checkpoint, experts, SoloGroup(), torch.float32, deterministic=True)


def _wish(draw: random.Random, name: str) -> Wish:
    a_page = draw.randint(PAGE_TOKENS - 8, PAGE_TOKENS)  # whose answer takes another
    prompt_tokens = draw.choice([draw.randint(1, 20), a_page, draw.randint(1, 180)])
    max_tokens = draw.randint(1, LIMITS.max_request_tokens - prompt_tokens)
    sampling = Sampling(
        min(max_tokens, MAX_TOKENS),
        temperature=0.0 if draw.random() < GREEDY else draw.uniform(0.2, 1.5),
        top_p=draw.choice([1.0, 0.9]),
        seed=draw.randrange(2**31),
        stop_ids=STOP_IDS,
        top_k=draw.choice([0, 20]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.7]),
        presence_penalty=draw.choice([0.0, 0.0, -0.5]),
    )
    return Wish(name, [draw.randrange(V3["vocab_size"]) for _ in range(prompt_tokens)], sampling)


def _take_away(rank: Rank, here: dict[str, Wish], request_id: str, engine: Engine, wrong: list[str]) -> int:
    """Compare what was said of a request with its answer alone, and forget it; 1, for counting."""
    wish = here.pop(request_id)
    said = [token.token_id for token in rank.said.pop(request_id, [])]
    expected = answer_alone(engine, SoloGroup(), wish)
    is_whole = request_id in rank.done
    rank.done.discard(request_id)
    if said != (expected if is_whole else expected[: len(said)]):
        wrong.append(f"{wish}: {said}, alone {expected}")
    return 1


def _resident_bytes() -> int:
    """Now, not at most: behind the peak of another test of this process a leak would not show."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Print a report for each kind; status 1 when anything is wrong."""
    number, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        engine = small_engine(Path(folder))
        reports = {kind: soak(engine, kind, number // 2, seed) for kind in ("mixed", "pair")}
    for kind, report in reports.items():
        print(f"{kind}: {report}")
        print("".join(f"  {line}\n" for line in report.wrong), end="")
    if not all(report.is_clean for report in reports.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

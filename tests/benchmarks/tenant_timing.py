"""Whether the time of a tenant's answer tells that another tenant has sent the same prompt.

    python -m tests.benchmarks.tenant_timing

One tenant, the victim, sends a prompt. Another, the attacker, then sends the same prompt, and one that nobody sent, in
40 pairs whose order alternates. The ratio of the medians of both should be 1. The victim's blocks lie on the device, in
host memory alone, or in a folder alone. One mixed rank has the bundled demo model, without sockets; all on one thread,
in CPU time. The victim's own second prompt shows what a hit would be. Nothing that the attacker sends may hit. Exits
with 1 when a goal is missed. A minute of CPU.

Where the gateway sends the attacker's prompt is tested by `tests/runtime/gateway/ranks/test_affinity.py`.
"""

import statistics
import sys
import tempfile
import time

import torch

from runtime.protocol.counting import PAGE_TOKENS
from runtime.worker.disk import close_disk
from tests.benchmarks.goals import Goals
from tests.benchmarks.kv_cache_tiers import FIRST_TOKEN, Conversation, demo_engine
from tests.runtime.one_rank import Wish

NUM_PAIRS, NUM_TOKENS = 40, 6 * PAGE_TOKENS + 20
VICTIM, ATTACKER = "victim", "attacker"  # salts
APART = 0.05


class Tenants(Conversation):
    """A rank with a folder behind its host memory, and prompts of tenants."""

    def seconds(self, prompt, salt):
        """CPU seconds until the first token, and the number of tokens found."""
        request_id, start = str(next(self._numbers)), time.process_time()
        self.rank.ask(Wish(request_id, prompt, FIRST_TOKEN, cache_salt=salt))
        while request_id not in self.rank.done:
            self.rank.step()
        return time.process_time() - start, self.rank.hits.get(request_id, 0)

    def leave_blocks(self, prompt, tier):
        """Let the victim's blocks be in this tier, and in none before it."""
        for _ in range(2):  # a block is written when it is used for the second time
            self.seconds(prompt, VICTIM)
            self.keep_all()
        if tier != "device":
            self.leave_device()
        if tier == "disk":
            self.leave_host()


def main():
    """Compare the attacker's times in each tier."""
    torch.set_num_threads(1)
    goals, engine = Goals(), demo_engine()
    for tier in ("device", "host", "disk"):
        with tempfile.TemporaryDirectory() as folder:
            tenants = Tenants(engine, folder)
            ratio, own, num_found = measure(tenants, tier)
            close_disk(tenants.disk)
        print(f"{tier}: the victim's own second prompt takes {own:.2f} of a new one")
        goals.check(f"{tier}: tokens that the attacker found", num_found, "<=", 0)
        print(f"{tier}: the attacker's, if it is the victim's, {ratio:.3f}")
        goals.check(f"{tier}: how far from 1 that is", abs(ratio - 1), "<=", APART)
    return goals.report()


def measure(tenants, tier):
    """Return (the attacker's ratio of medians, the victim's own, the tokens that the attacker found)."""
    taken, own, num_found = {True: [], False: []}, [], 0
    for pair in range(NUM_PAIRS):
        victims = tenants.words(NUM_TOKENS)
        for is_victims in (True, False) if pair % 2 else (False, True):
            tenants.leave_blocks(victims, tier)
            prompt = victims if is_victims else tenants.words(NUM_TOKENS)
            took, found = tenants.seconds(prompt, f"{ATTACKER} {pair}")
            taken[is_victims].append(took)
            num_found += found
        tenants.leave_blocks(victims, tier)
        own.append(tenants.seconds(victims, VICTIM)[0])
    new = statistics.median(taken[False])
    return statistics.median(taken[True]) / new, statistics.median(own) / new, num_found


if __name__ == "__main__":
    sys.exit(main())

"""The tutorial's measurement of traffic takes what a Prometheus has kept, and says what is missing."""

import json
import subprocess
import sys

import pytest

from tests.cluster.pages import Prometheus, read_blocks, running_prometheus

TOKENS = 14 * 5e8 + 10 * 1e8  # of a day: busy from 8 to 22


class Kept(Prometheus):
    """Has kept some days of hours that Tidemill's ranks recorded."""

    days = 28.0

    def answer(self, result):
        is_known = "increase%28tidemill_" in self.path
        super().answer(result if is_known else [])

    def hours(self):
        """Return the tokens of the hours since the oldest that is kept."""
        found = list(super().hours())
        return found[len(found) - int(24 * self.days) :]


def _measure(kept, prefix="tidemill_"):
    """Run the tutorial's script; return its exit status, what it prints, and what the terminal shows."""
    ((_, block),) = read_blocks("tutorial.md", "Measure the traffic")
    script = block.partition("<<'END'\n")[2].partition("END\n")[0]
    with running_prometheus(type("Some", (Kept,), {"days": kept})) as address:
        call = [sys.executable, "-", address, prefix]
        done = subprocess.run(call, input=script, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("kept", [28, 15, 1.5])
def test_a_day_has_the_same_tokens_however_many_days_are_kept(kept):
    """An hour that was seen more often than another weighs no more."""
    status, printed, said = _measure(kept)

    assert status == 0
    assert f"{kept} days found" in said
    assert f"a day: {TOKENS:.3g}/{TOKENS:.3g}" in said
    assert json.loads(printed) == [5e8 if 8 <= hour < 22 else 1e8 for hour in ((at + 1) % 24 for at in range(24))]


@pytest.mark.parametrize(("kept", "prefix", "found"), [(0.5, "tidemill_", "0.5"), (15, "vlm:", "0")])
def test_it_says_what_is_missing(kept, prefix, found):
    """Less than a day has no profile, and a wrong prefix finds nothing."""
    status, printed, said = _measure(kept, prefix)

    assert (status, printed) == (1, "")
    assert (
        f"{prefix}prompt_tokens_total: {found} days found\na day needs all 24 hours: is {prefix} the metrics' prefix"
        in said
    )

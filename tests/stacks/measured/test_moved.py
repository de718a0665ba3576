"""What switches have moved, beside what the last one promised."""

import http.server
import threading

import pytest

from stacks.measured.moved import Moved, Totals, promise, read_totals
from tests.ports import free_port

FIRST = Totals([(100e6, 1.0, 0.02), (0.0, 1.0, 0.01)]).since(Totals([(0.0, 0.0, 0.0), (0.0, 0.0, 0.0)]))


def test_bytes_of_all_ranks_and_the_time_of_the_slowest_count():
    """Bytes are summed over ranks; seconds and stall are the slowest rank's."""
    before = Totals([(5.0, 1.0, 0.5), (7.0, 2.0, 0.5)])

    assert Totals([(6.0, 4.0, 0.6), (9.0, 4.0, 0.9)]).since(before) == Moved(3, 3.0, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("promised", "said"),
    [
        (
            promise([], Moved(100_000_000)),
            "moved 100.0 MB (as promised), in 1.0 s (nothing promised), with 20 ms between steps (nothing promised)",
        ),
        (
            promise([Moved(50_000_000, 1.0, 0.01), Moved(1_000_000, 0.3, 0.01)], Moved(100_000_000, 9.0, 9.0)),
            "moved 100.0 MB (as promised), in 1.0 s (2.0 promised), with 20 ms between steps (as promised)",
        ),
        (Moved(90_000_000), "moved 100.0 MB (90.0 promised), in 1.0 s (nothing promised), with 20 ms between steps"),
    ],
)
def test_a_switch_is_told_beside_its_promise(promised, said):
    """The former switch that is nearest in bytes promises seconds and stall; of the first, what the plan says."""
    assert FIRST.beside(promised).startswith(said)


def test_a_rank_that_counts_no_switches_is_named():
    """A page without these metrics, or with counts that are no numbers, is no unit's that can switch, and a dead rank
    is not taken for one that is at 0."""
    counts = "".join(f"tidemill_expert_moves_{name}_total +Inf\n" for name in ("bytes", "seconds", "stall_seconds"))

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            if "infinite" in self.path:
                self.wfile.write(counts.encode())

        def log_message(self, *_):
            pass

    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with pytest.raises(ValueError, match="does not answer"):
        read_totals([url])
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        for page in (url, f"{url}/infinite"):
            with pytest.raises(ValueError, match="counts no switches"):
                read_totals([page])
        server.shutdown()

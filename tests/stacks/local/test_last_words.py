"""The reason that `status` shows for a process that ended: its own, and nobody else's."""

import os
import signal

import pytest

from stacks.local.processes import explain_end


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (1, "tidemill: spare n1 takes the place of n0\ntidemill: the port is taken\n", "the port is taken"),
        (1, "tidemill: the port is taken\nplaces: closed the connection of a stranger\n", "the port is taken"),
        (1, "Traceback (most recent call last):\n", "node-0 ended with status 1; see {log}"),
        (-signal.SIGKILL, "tidemill: spare n1 takes the place\n", "node-0 was killed by SIGKILL; see {log}"),
    ],
)
def test_a_process_gives_its_own_reason(tmp_path, status, said, reason):
    """One that was killed said nothing of its end, whatever it said before."""
    log = tmp_path / "node-0.log"
    log.write_text(said)

    assert explain_end("node-0", status, log) == reason.format(log=log)


def test_a_log_that_is_gone_or_was_cut_costs_its_words_at_most(tmp_path):
    """Somebody may remove it, or truncate it after a copy; one of any size is read at its end alone."""
    log, said = tmp_path / "node-0.log", b"tidemill: the port is taken\n"
    gone = explain_end("node-0", 1, log)
    log.write_bytes(said)
    cut = explain_end("node-0", 1, log, begin=4096)
    with log.open("wb") as file:
        file.truncate(2**40)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + said)

    assert gone == f"node-0 ended with status 1; {log} cannot be read: No such file or directory"
    assert cut == explain_end("node-0", 1, log, begin=4096) == "the port is taken"

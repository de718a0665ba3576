"""Files that a user names are read whole, or refused: none is waited for without end."""

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from planner.facts import files
from planner.facts.files import read_file


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that nobody has opened."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_that_nobody_writes_to_is_refused(pipe, monkeypatch):
    """After a moment: its writer may be about to start."""
    monkeypatch.setattr(files, "WRITER_GRACE_S", 0.1)

    with pytest.raises(OSError, match="nobody writes to this pipe"):
        read_file(pipe)


def test_a_pipe_is_read_to_its_end(pipe):
    """Its writer may start late, pause, and write more than a pipe holds."""
    parts = [b"a" * 100_000, b"b" * 300_000]

    def write():
        time.sleep(0.05)
        with pipe.open("wb", buffering=0) as file:
            for part in parts:
                time.sleep(0.05)
                file.write(part)

    threading.Thread(target=write, daemon=True).start()

    assert read_file(pipe) == b"".join(parts)


def test_a_pipe_without_end_is_refused(pipe):
    """As soon as it has more than is read."""

    def write():
        with pipe.open("wb", buffering=0) as file, suppress(BrokenPipeError):
            while True:
                file.write(b"a" * 1000)

    threading.Thread(target=write, daemon=True).start()

    with pytest.raises(OSError, match=r"more than 0\.0078125 MiB"):
        read_file(pipe, most_bytes=2**13)


@pytest.mark.parametrize(("path", "reason"), [("/dev/zero", "more than"), (".", "Is a directory"), ("none", "No such")])
def test_what_is_no_file_is_refused(path, reason, tmp_path):
    """A device without end, a folder, and what is not there."""
    with pytest.raises(OSError, match=reason):
        read_file(tmp_path / path, most_bytes=2**13)


@pytest.mark.slow
def test_a_spec_may_come_out_of_another_command(spec_text, tmp_path):
    """`tidemill validate <(cat spec.yaml)`, whose writer has often ended before anyone reads."""
    (tmp_path / "spec.yaml").write_text(spec_text.replace("version: 1", "version: 2"))
    main = "import sys; from planner.cli import main; sys.exit(main())"
    command = f'exec "{sys.executable}" -c "{main}" validate <(cat "{tmp_path}/spec.yaml")'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "version (2) must be 1" in done.stderr

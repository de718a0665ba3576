"""A process that asks another engine's own parsers, with that engine's packages on its path."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.planner.engines.wheels import require

__all__ = ["asking"]


@contextmanager
def asking(script, packages, kinds, log, **variables):
    """Run `script` beside this file, and yield a function that asks it questions of these kinds.

    Skips where a package cannot be had. Of two packages that have the same module, the first one's is imported.
    """
    path = os.pathsep.join(str(require(name)) for name in packages)

    def answers(**questions):
        asked.stdin.write(json.dumps({kind: [] for kind in kinds} | questions) + "\n")
        asked.stdin.flush()
        answer = asked.stdout.readline()
        assert answer, log.read_text()
        return json.loads(answer)

    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | variables | {"PYTHONPATH": path},
            cwd="/",
        ) as asked,
    ):
        yield answers
        asked.kill()  # it knows nothing that it would have to put away

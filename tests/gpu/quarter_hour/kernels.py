"""The tests of `tests/gpu` that need one rank: kernels against the reference, and a step's draws.

`run_tests` runs files of tests as a part, with their outcomes as figures; `ranks` uses it too. It leaves this project's
own settings for tests aside, since they need plugins that a machine with a GPU may not have.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.gpu.quarter_hour import one_gpu
from tests.gpu.quarter_hour.parts import MISSING

__all__ = ["run_tests"]

FILES = ("tests/gpu/test_kernels.py", "tests/gpu/test_draws.py")
ROOT = Path(__file__).parents[3]
PLAIN = ("-c", os.devnull, "--rootdir", ".", "--confcutdir", "tests/gpu", "--import-mode", "importlib", "-rs")
OTHERWISE = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def main() -> int:
    """Run the tests."""
    arguments = one_gpu.options(__doc__).parse_args()
    return run_tests(FILES, one_gpu.Figures(arguments.output), None)


def run_tests(files: tuple[str, ...], figures: one_gpu.Figures, variables: dict[str, str] | None) -> int:
    """Run the files in one process. Return what a part ends with: `MISSING` if all tests were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *PLAIN, f"--junitxml={report}", *files]
        status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        outcomes = read_outcomes(report) if report.exists() else {}
    counted = Counter(outcomes.values())
    figures.add(outcomes=dict(counted), failed=[name for name, outcome in outcomes.items() if outcome == "failed"])
    print(", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items())) or "pytest did not start")
    if set(counted) == {"skipped"}:
        return MISSING
    return int(status != 0)


def read_outcomes(report: Path) -> dict[str, str]:
    """Return each test's outcome by its name."""
    cases = ElementTree.parse(report).iter("testcase")
    return {
        case.get("name", ""): next((OTHERWISE[each.tag] for each in case if each.tag in OTHERWISE), "passed")
        for case in cases
    }


if __name__ == "__main__":
    sys.exit(main())

"""The tests of `tests/gpu` that need two ranks, which share a GPU where there is one, and one rank's recorded steps."""

import sys

from tests.gpu.quarter_hour import one_gpu
from tests.gpu.quarter_hour.kernels import run_tests

FILES = ("tests/gpu/test_ranks.py",)


def main() -> int:
    """Run the tests, through MPS where it is there."""
    arguments = one_gpu.options(__doc__).parse_args()
    figures = one_gpu.Figures(arguments.output)
    with one_gpu.environment(arguments.device) as variables:
        return run_tests(FILES, figures, variables)


if __name__ == "__main__":
    sys.exit(main())

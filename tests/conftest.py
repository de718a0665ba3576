"""For every test: in CI, Hypothesis draws the same examples each time, so that a red run means a change."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

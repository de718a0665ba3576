"""Compile the search for expert maps while Tidemill's wheel is built, so that nobody compiles when Tidemill runs."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledSearch(BuildHookInterface):
    """Builds `planner/expert_map/native/search.so` and puts it into the wheel, which is then for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, also for an editable installation, where the library stays in the source folder."""
        builder = runpy.run_path(str(Path(self.root, "planner", "expert_map", "native", "build.py")))
        library = builder["build"]()
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = builder["wheel_tag"]()

"""Goals of a benchmark: each is printed with the figure that was measured, and a missed one makes the run fail."""

import operator
from dataclasses import dataclass, field

COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, "==": operator.eq}


@dataclass
class Goals:
    """What was promised and what was measured, in the order in which it was measured."""

    lines: list[str] = field(default_factory=list)
    num_missed: int = 0

    def check(self, name, figure, relation, goal):
        """Note whether `figure relation goal` holds."""
        met = bool(COMPARE[relation](figure, goal))
        self.num_missed += not met
        self.lines.append(f"{'met   ' if met else 'MISSED'}  {name}: {figure:.6g} {relation} {goal:g}")

    def report(self):
        """Every goal with its figure; the exit status."""
        print(*self.lines, f"{len(self.lines) - self.num_missed} of {len(self.lines)} goals met", sep="\n")
        return 1 if self.num_missed else 0

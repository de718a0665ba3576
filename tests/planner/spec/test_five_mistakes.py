"""Several mistakes in one file are all reported, each on its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

# line -> (wrong text, rule id): each breaks one rule, and none of them is read by the rule of another
MISTAKES = {
    1: ("version: one", "S204"),
    2: ("name: River", "S209"),
    4: ("  config: missing.json", "S301"),
    5: ("  checkpoint: weights", "S209"),
    7: ("  gpu: h888", "S304"),
    8: ("  nodes: -1", "S205"),
    9: ("  gpus_per_node: two", "S203"),
    11: ("  ep_size: 0", "S205"),
    12: ("  redundant_experts: few", "S203"),
    13: ("  overlap: all", "S204"),
    15: ("  max_requestz: 8", "S201"),
    17: ("  max_batch_tokens: 1e3", "S203"),
    19: ("  units: 0", "S205"),
    26: ("  alpha: 9", "S205"),
    27: ("  seed: 0.5", "S203"),
    29: ("  port: 29400", "S405"),
    31: ("  namespace: Tide", "S209"),
    32: ("  image: a b", "S209"),
}


@pytest.mark.slow
@given(lines=st.sets(st.sampled_from(sorted(MISTAKES)), min_size=5, max_size=5))
def test_five_mistakes_give_five_problems_on_their_lines(lines, spec_text, with_line, problems_of):
    """Any five broken rules of a file are reported at once, each with its own line."""
    text = spec_text
    for line in lines:
        text = with_line(line, MISTAKES[line][0], text)

    found = [(problem.line, problem.rule[:4]) for problem in problems_of(text)]

    assert found == [(line, MISTAKES[line][1]) for line in sorted(lines)]

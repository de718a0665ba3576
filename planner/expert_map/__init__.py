"""Make expert maps from loads.

Glossary, with 256 logical experts, 32 redundant and 144 GPUs as the worked example:
    load               tokens that chose a logical expert, `[num_moe_layers][num_logical_experts]`, whole numbers
    replica            one of the slots that hold the same logical expert; tokens are split equally among them
    physical expert    a slot: 256 + 32 = 288 a layer, numbered GPU by GPU, 288 / 144 = 2 on each
    max over mean      load of the fullest GPU / mean load of all GPUs; a step waits for the fullest GPU, and 1.0 is
                       perfect
    bound              a lower limit of the max over mean of every map, for these loads and sizes

The search begins like DeepSeek's EPLB: it gives replicas to hot experts and packs slots onto GPUs. Then it takes load
off the fullest GPU until no step helps (`maps`, `native`). `bound` says how much better a map could be at most.

Source: github.com/deepseek-ai/EPLB.
"""

from planner.expert_map.balance import balance
from planner.expert_map.domains import consecutive_domains, count_uncovered, fewest_slots_per_gpu
from planner.expert_map.types import (
    Domains,
    Effort,
    ExpertMap,
    FrontPoint,
    Policy,
    Sizes,
)

__all__ = [
    "Domains",
    "Effort",
    "ExpertMap",
    "FrontPoint",
    "Policy",
    "Sizes",
    "balance",
    "consecutive_domains",
    "count_uncovered",
    "fewest_slots_per_gpu",
]

"""What a drifted window moves, ours beside the published EPLB: the part `moves` of `expert_maps.py`.

No times are compared: the reference is `eplb_reference.py`, which makes maps of the same balance sooner.

    moves      share of slots whose expert changed on a drifted window (Gaussian copula), order inside a GPU ignored
    least      a proven bound on that share (`fewest_moves.py`), of a seed with two slots a GPU that is above the goal:
               near the bound is enough there. Both are of the seed that is farthest from what is asked
    anew       the same share for our own fresh map, and for the reference's
    per slot   of max/mean, in thousandths: what a layer gained for each of its slots that moved, least of all seeds
    ms         of a map with a previous one
"""

import numpy as np

from tests.benchmarks.drifting_loads import count_moves, drift, max_over_mean
from tests.benchmarks.expert_map_configs import ALPHAS, RHOS, SEEDS, ours_for, timed
from tests.benchmarks.fewest_moves import fewest_moves
from tests.planner.expert_map.eplb_reference import rebalance_experts

NEAR = 1.03  # times the bound


def moves_table(goals, configs):
    """What a drifted window moves, at a balance no worse than the reference's on that window."""
    row = "{:14} {:>5} {:>5} {:>7} {:>9} {:>7} {:>6} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>8}"
    head = (
        "stale",
        "reference",
        "ours",
        "worse",
        "moves",
        "least",
        "unchanged",
        "our anew",
        "eplb anew",
        "per slot",
        "ms",
    )
    print(row.format("config", "alpha", "rho", *head))
    for config in configs:
        for rho in RHOS if config.moves else ():
            for alpha in ALPHAS:
                case, goal = f"{config.name}, alpha {alpha}, rho {rho}", config.moves[RHOS.index(rho)]
                run = moves(config, alpha, rho, goal)
                keys = ("stale", "reference", "ours", "worse", "moves", "least", "unchanged", "ours anew", "eplb anew")
                written = [f"{run[key]:.4g}" if run[key] >= 0 else "" for key in (*keys, "per slot", "ms")]
                print(row.format(config.name, alpha, rho, *written), flush=True)
                goals.check(f"{case}: share of slots moved", run["moves"], "<=", run["asked"])
                goals.check(f"{case}: layers worse than the reference", run["worse"], "<=", 0)
                goals.check(f"{case}: slots moved for unchanged loads", run["unchanged"], "<=", 0)


def moves(config, alpha, rho, goal):
    """Each figure of the seed where it is worst; layers worse, and slots moved for unchanged loads, added up."""
    seeds = [moves_of_seed(config, *drift(alpha, rho, seed), goal) for seed in SEEDS]
    worst = {key: max(figures[key] for figures in seeds) for key in seeds[0]}
    worst["per slot"] = min(figures["per slot"] for figures in seeds)
    farthest = max(seeds, key=lambda figures: figures["moves"] / figures["asked"])
    worst |= {key: farthest[key] for key in ("moves", "least", "asked")}
    return worst | {key: sum(figures[key] for figures in seeds) for key in ("worse", "unchanged")}


def moves_of_seed(config, old, new, goal):
    """Of one drift; `least` is -1 where it was not looked for."""
    sizes = (config.num_slots, config.num_groups, config.num_nodes, config.num_gpus)
    eplb = [rebalance_experts(loads, *sizes) for loads in (old, new)]
    before, fresh = (ours_for(config, loads).physical_to_logical for loads in (old, new))
    renewed, ms = timed(ours_for, config, new, previous=before)
    kept = ours_for(config, old, previous=before)
    stale, reached, reference = (
        max_over_mean(new, np.array(slots), config.num_gpus) for slots in (before, renewed.physical_to_logical, eplb[1])
    )
    share = renewed.moved_slots / np.size(before)
    is_bounded = share > goal and config.num_slots == 2 * config.num_gpus
    least = min_share(config, new, before, reference) if is_bounded else -1
    return {
        "stale": stale.mean(),
        "reference": reference.mean(),
        "ours": reached.mean(),
        "worse": int((reached > reference + 1e-6).sum()),
        "moves": share,
        "least": least,
        "asked": max(goal, NEAR * least),
        "unchanged": kept.moved_slots,
        "ours anew": share_moved(config, before, fresh),
        "eplb anew": share_moved(config, *eplb),
        "per slot": 1e3 * (stale - reached).sum() / max(renewed.moved_slots, 1),
        "ms": ms,
    }


def min_share(config, loads, before, ratios):
    """Share of slots that change at least from `before` until each layer's max/mean is that of `ratios`."""
    fullest = ratios * (1 + 1e-6) * loads.sum(axis=1) / config.num_gpus
    layers = zip(loads, np.reshape(before, (len(loads), -1, 2)), fullest, strict=True)
    return sum(fewest_moves(*layer) for layer in layers) / np.size(before)


def share_moved(config, before, after):
    """Share of slots whose expert differs, order inside a GPU ignored."""
    old, new = (np.array(slots).reshape(len(slots), config.num_gpus, -1) for slots in (before, after))
    return count_moves(new, old) / new.size

"""Why speed chose the numbers that stand in place of `auto`, in words for the plan."""

from collections.abc import Mapping

from planner.facts.terms import Phase
from planner.search.decision import Decision
from planner.search.fleet import MOST_REFUSED
from planner.search.layouts import LayoutSearch, PhaseSearch
from planner.spec.check import ResolvedSpec

__all__ = ["reasons_of"]

MADE = {"prefill": "computed prompt tokens/s", "decode": "output tokens/s", "mixed": "output tokens/s"}


def reasons_of(search: LayoutSearch, spec: ResolvedSpec, values: Mapping[str, int]) -> list[Decision]:
    """Return one decision for each path of `values`."""
    return [Decision(path, number, _why(search, spec, path)) for path, number in values.items()]


def _why(search: LayoutSearch, spec: ResolvedSpec, path: str) -> str:
    phase, _, field = path.partition(".")
    if field == "units":
        return _of_units(search)
    each = next(one for one in search.phases if one.phase == phase)
    slo = _slo(spec, each.phase)
    whys = {
        "redundant_experts": f"the balance that is worth its memory: the fullest GPU has "
        f"{each.chosen.speed.max_over_mean:.2f} times the mean",
        "max_requests": f"the most that KV {'and the SLO allow' if slo else 'has room for'}",
    }
    return whys.get(field, f"{_of_speed(each, slo)} the one that serves {_aim(search)}")


def _of_speed(each: PhaseSearch, slo: str) -> str:
    rate = f"{each.chosen.speed.tokens_per_s_per_gpu:,.0f} {MADE[each.phase]} a GPU"
    return f"{rate}{slo}, of {each.tried:,} layouts"


def _aim(search: LayoutSearch) -> str:
    """Say what was chosen by: the most, or the busiest hour on fewest nodes, where idle ones may be worth fewer."""
    if search.demand is None:
        return "most"
    loses_little = search.fleet.nodes < search.room and search.demand.lost(search.fleet) <= MOST_REFUSED
    spared = f", with at most {MOST_REFUSED:.0%} of it refused when a node is lost" if loses_little else ""
    return f"the busiest hour on fewest nodes{spared}"


def _of_units(search: LayoutSearch) -> str:
    fleet = search.fleet
    ratio = ""
    if "prefill" in search.tokens:
        ratio = f", at {search.tokens['prefill']:.3g} computed prompt tokens for one of output"
    served = f"{fleet.served_per_s:,.0f} output tokens/s on {fleet.nodes} of {search.room} nodes"
    aim = "the fewest for the busiest hour" if search.demand else "the most that they serve"
    return f"{aim}: {served}{ratio}"


def _slo(spec: ResolvedSpec, phase: Phase) -> str:
    slo = spec.written.slo
    limits = {"TTFT": slo.ttft_ms if phase != "decode" else None, "TPOT": slo.tpot_ms if phase != "prefill" else None}
    kept = [f"{name} {most:g} ms" for name, most in limits.items() if most is not None]
    return f" within {' and '.join(kept)}" if kept else ""

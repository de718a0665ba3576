"""Build the report rows that are not single figures of a plan, but combine figures or say where these come from."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import ceil, inf
from statistics import fmean
from typing import Any

from planner.estimate.failures import recovery_s, suggest_spare
from planner.estimate.switches import predict_first_switch
from planner.facts import names
from planner.facts.catalog import ASSUMED
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES, MINUTE_S, hh_mm, minute_of, periods
from planner.facts.engines import OURS
from planner.facts.quantities import BYTES_PER_GBIT, MS_PER_S
from planner.facts.terms import PHASES, Phase
from planner.layout.memory import node_bytes, pod_host_bytes
from planner.layout.nodes import spares_with
from planner.plan.expected import ORDINARY, Demand, Performance, Promise, StretchDemand
from planner.plan.plan import Plan
from planner.plan.row import Provenance, Row, make_rows
from planner.plan.sections import Step
from planner.report.prerequisites import prerequisites
from planner.spec.decision import DEFAULT
from planner.spec.operating_point import CACHE_READ_RATE
from planner.spec.request_lengths import describe_assumed_lengths

MISSED_VERDICTS = (
    "missed at the expected speed, kept at the fastest",
    "missed, even at the fastest speed",
)  # of an SLO

GUESSES = ("operating_point.", "schedule.start.")  # sections whose defaults are guesses about a cluster
MEMORY_PARTS = {"cuda_graphs": "cuda_graph_bytes", "headroom": "headroom_bytes"}  # assumed part -> its bytes
NEVER_MEASURED = "never measured"
SWITCHES_MEASURED = "by changes measured on one GPU and on three CPU nodes"
OF_NO_CLUSTER = "a guess: the spec does not say it of this cluster"
FEW_TIMES = 2  # of equal peaks that are all named
SHARE_DIGITS = 3  # of a share, as it is shown
MAX_NUMBERS = 4  # in a list; of a longer list its length and range are shown
REPLICAS = {  # split rules that do not share tokens equally among replicas
    "local_first": "tokens go to a replica on their own GPU or node first",
    "first_on_node": "tokens go to a replica on their own GPU, else to the first on their node",
}


def derived_rows(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan that combine figures or say where they come from, topic by topic."""
    topics = (
        _cluster_rows,
        _phase_rows,
        _schedule_rows,
        _cost_rows,
        _performance_rows,
        _failure_rows,
        _map_rows,
        _memory_rows,
        _problem_rows,
        _assumed_rows,
        _decision_rows,
    )
    return chain.from_iterable(topic(plan) for topic in topics)


def field_origin(plan: Plan, path: str) -> Provenance:
    """Return who set the spec's field at `path`: the spec, a default, or the planner (`derived`)."""
    why = next((each.why for each in plan.decisions if each.path == path), None)
    return "spec" if why is None else "default" if why == DEFAULT else "derived"


def _cluster_rows(plan: Plan) -> Iterator[Row]:
    model, cluster = plan.spec.model, plan.spec.cluster
    yield from make_rows(
        "plan",
        ("model", model if isinstance(model, str) else model.name or model.catalog or model.config, "", "spec"),
        ("engine", plan.spec.engine_name, "", "spec"),
        ("engine_version", plan.spec.engine_version, "", "spec"),
    )
    yield from make_rows(
        "cluster",
        ("gpu", cluster.gpu_name, "", "spec"),
        ("gpus_per_node", cluster.gpus_per_node, "", "spec"),
        ("nodes", cluster.nodes if isinstance(cluster.nodes, int) else len(cluster.nodes), "", "spec"),
        ("nodes_used", _nodes_used(plan)),
        ("spares", len(cluster.spares), "", "spec"),
    )


def _nodes_used(plan: Plan) -> int:
    return len({node for unit in plan.units for node in unit.nodes})


def _phase_rows(plan: Plan) -> Iterator[Row]:
    for phase, each in plan.phases.items():
        asked, num_units = plan.spec.phase(phase), len(plan.units_of(phase))

        def written(name: str, value: Any, phase: Phase = phase) -> tuple[Any, ...]:
            return name, value, "", field_origin(plan, f"{phase}.{name}")

        yield from make_rows(
            f"phases.{phase}",
            written("units", num_units),
            ("nodes", num_units * each.nodes_per_unit),
            written("redundant_experts", each.num_physical_experts - each.num_logical_experts),
            written("precision", asked.precision),
            written("kv_precision", asked.kv_precision),
            written("attention_precision", asked.attention_precision),
            written("max_requests", asked.max_requests),
            written("max_request_tokens", asked.max_request_tokens),
            written("max_batch_tokens", None if phase == "decode" else asked.max_batch_tokens),
        )


def _schedule_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on the schedule's states with most and fewest nodes, the controller, and the time of each switch.

    Each state of the day has a row with its hours, each special kind of day a row with its days.
    """
    day = plan.schedule
    if day is None:
        return
    for which, choose in (("most", max), ("fewest", min)):
        state = choose(day.steps, key=lambda each: each.nodes)
        alike = [(minute_of(each.at), each.minutes) for each in day.steps if each.units == state.units]
        yield from make_rows(
            "schedule",
            (f"{which}_nodes", state.nodes),
            (f"{which}_nodes_at", state.at),
            (f"{which}_nodes_times", periods(alike)),
        )
    if plan.switches_units:
        yield from make_rows("schedule", ("controller", "set" if plan.kubernetes.controller else "not set", "", "spec"))
    for step in day.steps:
        yield from make_rows(f"schedule.steps.{step.at}", ("hours", step.minutes / HOUR_MINUTES, "hours"))
    for other in day.other_days:
        yield from make_rows(f"schedule.other_days.{other.days[0]}", ("days", ", ".join(other.days), "", "spec"))
    for each in day.transitions:
        seconds = sum(stage.seconds for stage in each.stages)
        stages = ", ".join(f"{stage.name} {stage.seconds:g} s" for stage in each.stages)
        yield from make_rows(
            f"transitions.{each.at[:5]}",
            ("starts", _count_by_phase(plan, each.starts)),
            ("taken_at", each.warm_up_from and each.warm_up_from.removesuffix(":00")),
            ("start_s", seconds or None, "s", "assumed", stages),
            ("stops", _count_by_phase(plan, each.stops)),
            ("free_at", each.drained_by and each.drained_by.removesuffix(":00")),
            ("node_hours", each.freed_node_hours if each.stops else None, "hours"),
        )


def _count_by_phase(plan: Plan, units: Sequence[str]) -> str | None:
    """Return the number of the named `units` of each phase as text, `6 prefill, 2 decode`; None for no units."""
    switched = set(units)
    counts = Counter(unit.phase for unit in plan.units if unit.name in switched)
    return ", ".join(f"{number} {phase}" for phase, number in counts.items()) or None


def _cost_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on each phase's peak load as a share of its capacity, and on what the day's cost includes."""
    for phase, load in (plan.demand or {}).items():
        of_most = load.asked_tokens_per_s / load.most_tokens_per_s if load.most_tokens_per_s else None
        speed = (plan.performance or {})[phase].tokens_per_s_per_gpu
        at_slowest = of_most * speed.mid / speed.low if of_most and speed and speed.low else None
        fullest = _fullest_stretches(load)
        yield from make_rows(
            f"demand.{phase}",
            ("highest_load_of_most", of_most, "share", "predicted"),
            ("highest_load_times", _say_fullest(fullest) or None),
            ("highest_load_of_most_at_slowest", at_slowest, "share", "predicted"),
        )
    if plan.cost is None:
        return
    cost = plan.cost
    differ = any(section is not None and section.other_days for section in (plan.spec.traffic, plan.spec.schedule))
    unknown = " and ".join(cost.speed_unknown)
    assert plan.spec.cost is not None
    rates, steps = plan.spec.cost, plan.schedule.steps if plan.schedule else ()
    is_flat = not rates.gpus
    is_known = is_flat and _nodes_used(plan) in {each.nodes for each in steps}
    counted = f"all tokens that come while a unit is on: the speed of {unknown} is not known" if unknown else None
    yield from make_rows(
        "cost",
        ("mean_nodes", sum(each.mean_nodes for each in cost.phases.values()) + len(plan.spec.cluster.spares)),
        ("billed", "a day like most: other_days are not billed" if differ else None),
        ("counted_as_answered", counted),
        ("usd_per_gpu_hour", rates.usd_per_gpu_hour if is_flat else None, "USD", "spec"),
        ("usd_per_day_if_all_are_on", cost.usd_per_day + cost.freed.usd_per_day if is_known else None, "USD"),
    )


def _fullest_stretches(load: Demand) -> list[tuple[int, int]]:
    """Return (first minute, minutes) of each stretch of the day with the highest load.

    Loads that are printed alike count as equal.
    """
    shares = [round(_share_of_most(each), SHARE_DIGITS) for each in load.stretches]
    timed = zip(load.stretches, shares, strict=True)
    return [(minute_of(each.at), each.minutes) for each, share in timed if share == max(shares)]


def _say_fullest(stretches: Sequence[tuple[int, int]]) -> str:
    """Return the times of stretches (first minute, minutes) as text: `12:00, 20:00`; if many, `12:00 and 3 h more`."""
    if len(stretches) <= FEW_TIMES:
        return ", ".join(hh_mm(start) for start, _ in stretches)
    hours = sum(minutes for _, minutes in stretches[1:]) / HOUR_MINUTES
    return f"{hh_mm(stretches[0][0])} and {hours:g} h more"


def _share_of_most(hour: StretchDemand) -> float:
    if not hour.asked_tokens_per_s:
        return 0.0
    return hour.asked_tokens_per_s / hour.most_tokens_per_s if hour.most_tokens_per_s else inf


def _performance_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on whether each phase keeps its SLO, and on how full its units are at the predicted speed."""
    for phase, each in (plan.performance or {}).items():
        section, point, memory = f"performance.{phase}", each.operating_point, plan.memory.get(phase)
        if point is None or each.tokens_per_s_per_gpu is None:
            continue
        rate, used, in_use = each.tokens_per_s_per_gpu.mid, point.utilisation or 1.0, each.kv_tokens_in_use
        more = each.with_10_percent_more
        unending = "without waiting: at 100% utilisation the queue grows without end"
        yield from make_rows(
            section,
            ("ttft_leaves_out", unending if phase == "prefill" and point.utilisation == 1 else None),
            *_promise_fields(each),
            ("tokens_per_s_per_gpu_at_full_use", rate / used if used < 1 else None, "tokens/s", "predicted"),
            ("kv_share_in_use", in_use / memory.kv_tokens if in_use and memory else None, "share"),
            ("gain_of_10_percent", more and more / rate - 1, "share", "predicted", "with 10% more of what binds"),
        )


def _promise_fields(each: Performance) -> Iterator[tuple[Any, ...]]:
    for name, promise in (each.slo or {}).items():
        is_open = promise.met_at_fastest and not promise.met_at_slowest
        chance = each.evidence.chance if each.evidence and is_open else ""
        yield name.replace("_ms", "_promise"), _verdict(promise), "", "predicted", chance
        yield name.replace("_ms", "_missed_at"), _say_misses(promise) or None, "", "predicted"


def _say_misses(promise: Promise) -> str:
    """Return when a day's traffic breaks a promise, and how slow the worst of it is; empty if it never does."""
    said = []
    for day, misses in (promise.misses or {}).items():
        if misses:
            times = periods((minute_of(each.at), each.minutes) for each in misses)
            known = [each.predicted for each in misses if each.predicted is not None]
            slow = f"up to {max(known):,.0f} ms" if len(known) == len(misses) else "more than units can serve"
            said.append(f"{times}{'' if day == ORDINARY else f' on {day}'} ({slow})")
    return ", ".join(said)


def _verdict(promise: Promise) -> str:
    """Return the words for an SLO: at which speeds of the predicted range it is met."""
    if promise.met_at_slowest:
        return "kept, even at the slowest speed"
    if promise.met:
        return "kept at the expected speed, missed at the slowest"
    some_speed, no_speed = MISSED_VERDICTS
    return some_speed if promise.met_at_fastest else no_speed


def _failure_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on coverage, on the units that each failure stops, and on the worst failure with recovery from it.

    The worst failure is given with all units on and with the fewest.
    """
    if (coverage := plan.spec.coverage) != "none":
        yield from make_rows("failures", ("coverage", f"every expert survives the loss of one {coverage}"))
    for phase, losses in (plan.failures or {}).items():
        for domain, loss in losses.items():
            yield from make_rows(f"failures.{phase}.{domain}", ("share", loss.units / loss.of_units, "share"))
    if not plan.failures:
        return
    yield from _worst_loss(plan, "most", {phase: (len(plan.units_of(phase)), None) for phase in plan.failures})
    fewest = {phase: _fewest_units_on(plan, phase) for phase in plan.failures}
    yield from _worst_loss(plan, "fewest", fewest)
    yield from make_rows("failure", ("gateways", plan.gateway.replicas, "", "spec"))


def _worst_loss(plan: Plan, when: str, on: Mapping[Phase, tuple[int, Step | None]]) -> Iterator[Row]:
    """Yield rows on the one failure that stops the largest share of a phase's running units.

    Of equal failures, that of the smallest domain and the first phase counts. `on` is phase -> (number of running
    units, the state of the day with this number, or None if all units are always on). `when`, part of the
    rows' names, is `most` or `fewest`.
    """
    found = [
        (min(loss.units, on[phase][0]) / on[phase][0], -size, -PHASES.index(phase), phase, domain)
        for phase, losses in (plan.failures or {}).items()
        for size, (domain, loss) in enumerate(losses.items())
    ]
    share, *_, phase, domain = max(found)
    (units_on, step), losses = on[phase], (plan.failures or {})[phase]
    loss = losses[domain]
    if when == "fewest" and step is None:
        return  # all units of the phase are always on
    yield from make_rows(
        f"failure.{when}",
        ("phase", phase),
        ("domain", domain),
        ("domains", _join_or([each for each, its in losses.items() if its.units == loss.units])),
        ("place", names.short_name(loss.at, plan.name)),
        ("units", min(loss.units, units_on)),
        ("units_on", units_on),
        ("share", share, "share"),
        ("at", step and step.at),
        ("unserved_usd_per_hour", _unserved_usd(plan, phase, share, step), "USD", "predicted"),
        ("nodes_off", step and _nodes_used(plan) - step.nodes),
        *_recovery_fields(plan, phase),
    )


def _unserved_usd(plan: Plan, phase: Phase, lost: float, step: Step | None) -> float | None:
    """Return the most income of an hour, in dollars, that a failure leaves unserved; None without prices of tokens.

    It stops the share `lost` of the units of `phase` that are on in `step`. Without a step, the result is also None if
    not all of them are on all day.
    """
    most_usd, loads = plan.cost and plan.cost.revenue_if_all_answered_usd_per_day, plan.demand or {}
    varies = step is None and _fewest_units_on(plan, phase)[1] is not None
    if most_usd is None or phase not in loads or varies:
        return None
    tokens = sum(each.asked_tokens_per_s * each.minutes for each in loads[phase].stretches)
    found = [0.0]
    for hours in zip(*(load.stretches for load in loads.values()), strict=True):
        of_phase = hours[list(loads).index(phase)]
        since = minute_of(of_phase.at) - (minute_of(step.at) if step else 0)
        if tokens and since % DAY_MINUTES < (step.minutes if step else DAY_MINUTES):
            served = min(_served_share(each) for each in hours)
            left = min(served, _served_share(of_phase, 1 - lost))
            usd = most_usd * of_phase.asked_tokens_per_s * HOUR_MINUTES / tokens
            found.append(usd * (served - left))
    return max(found)


def _served_share(hour: StretchDemand, running: float = 1.0) -> float:
    """Return the share of a stretch's tokens that a phase can serve while the share `running` of its units is up."""
    return min(1.0, running * hour.most_tokens_per_s / hour.asked_tokens_per_s) if hour.asked_tokens_per_s else 1.0


def _join_or(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _fewest_units_on(plan: Plan, phase: Phase) -> tuple[int, Step | None]:
    """Return (the fewest units of `phase` that are on at a time, above 0, and a state of the day with them).

    If all units are always on, return their number and None.
    """
    days = [plan.schedule, *plan.schedule.other_days] if plan.schedule else []
    num_units = len(plan.units_of(phase))
    on = [(getattr(step, f"{phase}_units"), step) for day in days for step in day.steps]
    some = [(number, step) for number, step in on if 0 < number < num_units]
    return min(some, key=lambda each: (each[0], each[1].at), default=(num_units, None))


def _recovery_fields(plan: Plan, phase: Phase) -> Iterator[tuple[Any, ...]]:
    """Yield (name, value, ...) of rows on the minutes to recover on a spare node, and on how to have one."""
    if spares_with(plan.spec.cluster, plan.spec.gpu_name(phase), plan.kubernetes.tolerations):
        yield "recovery_minutes", ceil(recovery_s(plan.spec) / MINUTE_S), "minutes", "assumed"
    yield "offered_spare", suggest_spare(plan.spec, plan.units, phase) or None


def _map_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on how even each phase's expert map is, and on what units read from storage if the map changed."""
    loads: Provenance = "spec" if plan.spec.expert_load.file else "assumed"
    for phase, balance in (plan.balance or {}).items():
        section, each, moves = f"balance.{phase}", plan.expert_maps[balance.expert_map], balance.moves
        yield from make_rows(
            section,
            ("max_over_mean", fmean(each.max_over_mean), "ratio", loads),
            ("bound", fmean(each.bound), "ratio", loads, "no map with these slots is below it"),
            ("max_over_mean_of_worst_layer", max(each.max_over_mean), "ratio", loads),
            ("replicas", REPLICAS.get(each.split)),
        )
        if moves is not None and moves.moved_slots:
            yield from make_rows(f"{section}.moves", ("slots", sum(map(len, each.physical_to_logical))))
        if moves is not None and moves.bytes and (memory := plan.memory.get(phase)):
            sizes = plan.phases[phase].ep_size, plan.phases[phase].attention_tp, plan.spec.cluster.gpus_per_node
            read = node_bytes(memory.read_bytes, memory.weights.routed, *sizes)
            seconds = read / (plan.kubernetes.load_rate * BYTES_PER_GBIT)
            yield from make_rows(f"{section}.moves", ("bytes_read_per_node", read, "bytes"), ("read_s", seconds, "s"))
        if phase in (plan.live_maps or {}):
            yield from make_rows(f"live_maps.{phase}", *_largest_change(plan, phase, each.physical_to_logical))


def _largest_change(plan: Plan, phase: Phase, rows: Sequence[Sequence[int]]) -> Iterator[tuple[Any, ...]]:
    """Yield figures of the largest change that a unit may make to its map in service, if it is the unit's first."""
    assert plan.live_maps is not None
    assert plan.spec.expert_load.live is not None
    rules, limit = plan.live_maps[phase], plan.spec.expert_load.live.max_bytes
    moves = min(limit // rules.expert_bytes, sum(map(len, rows)))
    yield "change_experts", moves
    yield "change_bytes", moves * rules.expert_bytes, "bytes"
    if moves:
        sizes = rules.expert_bytes, len(rows), len(rows[0]), plan.phases[phase].ep_size
        times = predict_first_switch(rules.device, moves * rules.expert_bytes, *sizes)
        yield "change_s", times.seconds, "s", "assumed", SWITCHES_MEASURED
        yield "change_stall_ms", MS_PER_S * times.stall_s, "ms", "assumed", SWITCHES_MEASURED


def _memory_rows(plan: Plan) -> Iterator[Row]:
    for phase, each in plan.memory.items():
        parts = each.weights_bytes + each.activation_bytes + each.buffer_bytes + each.reserve_bytes
        yield from make_rows(f"memory.{phase}", ("kv_bytes", each.gpu_bytes - parts, "bytes"))
    if plan.kv_cache is not None and plan.kv_cache.kept is not None:
        unit = plan.units[0]  # a unit that computes prompts
        pod_bytes = pod_host_bytes(plan.spec, unit.phase, unit.ranks_per_node)
        yield from make_rows(
            "kv_cache.kept", ("pod_memory_bytes", pod_bytes, "bytes"), *_kept_kv_fields(plan, unit.phase)
        )


def _kept_kv_fields(plan: Plan, phase: Phase) -> Iterator[tuple[str, float, str]]:
    """Yield (name, value, unit) of rows on the dollars a day that kept KV saves, and that its loss would cost.

    Yield nothing if no KV is kept, or without a price.

    A node's price is that of the nodes of `phase`.
    """
    kept, cost = plan.kv_cache and plan.kv_cache.kept, plan.cost and plan.cost.phases[phase]
    if kept and cost and cost.mean_nodes:
        yield "saved_usd_per_day", kept.saved_nodes * cost.usd_per_day / cost.mean_nodes, "USD"
        if kept.lost_share is not None:
            yield "lost_usd_per_day", kept.lost_share * cost.usd_per_day, "USD"


def _problem_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on the reasons why the engine cannot run the plan, on warnings, and on untested engines."""
    for topic, findings in (("refusals", plan.refusals), ("warnings", plan.warnings)):
        counts: Counter[str] = Counter()
        for each in findings:
            name = f"{each.id} {each.path}"
            counts[name] += 1
            yield from make_rows(topic, (f"{name} {counts[name]}", f"{each.message} [{each.id}]"))
    if plan.runnable and any(plan.spec.device(phase) == "cuda" for phase in plan.spec.phases):
        ours, theirs = "tidemill has not yet run across GPUs", "we have not yet run this engine on a GPU"
        yield from make_rows("plan", ("untried", ours if plan.engine == OURS else theirs))


def _assumed_rows(plan: Plan) -> Iterator[Row]:
    """Yield a row for each figure that is assumed, since nobody has published or measured it, with its value."""
    loads = plan.spec.expert_load
    if loads.file is None:
        drawn = f"power law, alpha {loads.alpha:g}, seed {loads.seed}"
        yield from make_rows("assumed", ("expert_load", drawn, "", "assumed", "expert_load.file gives measured ones"))
    performance = plan.performance or {}
    if any(each.not_predicted is None for each in performance.values()):
        lengths, _, why = describe_assumed_lengths(plan.spec).removeprefix("assumes ").rstrip(")").partition(" (")
        yield from make_rows("assumed", ("request_lengths", lengths or None, "", "assumed", why))
    of_phases = [performance[phase] for phase in plan.spec.phases if phase in performance]  # a file sorts its keys
    evidence = [each.evidence for each in of_phases if each.evidence]
    if unmeasured := "; ".join(each.why for each in evidence if each.family == "none"):
        yield from make_rows("assumed", (f"speed of {plan.engine}", NEVER_MEASURED, "", "assumed", unmeasured))
    for name, source in plan.assumed.items():
        why = source.removeprefix(f"{ASSUMED}: ")
        yield from make_rows("assumed", (name, *_assumed_value(plan, name), "assumed", why))
    for each in plan.decisions:
        if each.why == DEFAULT and each.path.startswith(GUESSES):
            yield from make_rows("assumed", (each.path, _format_setting(each.value), "", "default", OF_NO_CLUSTER))
    if _assumes_read_rate(plan):
        path = "operating_point.prefill.cache_read_rate"
        yield from make_rows("assumed", (path, CACHE_READ_RATE, "", "default", "the most that 3FS gave a node"))


def _assumed_value(plan: Plan, name: str) -> tuple[Any, str]:
    """Return (value, unit) of the assumed number `name`: a part of a phase's memory, or a figure of a GPU."""
    section, _, part = name.rpartition(".")
    for phase, memory in plan.memory.items():
        if section == phase and (size := getattr(memory, MEMORY_PARTS.get(part, ""), None)):
            return size, "bytes"
    gpus = {f"{phase}.gpu": gpu for phase, gpu in (plan.phase_gpus or {}).items()}
    figure = getattr(gpus.get(section, plan.gpu), part, None)
    return ("as the reason says" if figure is None else figure), ""


def _assumes_read_rate(plan: Plan) -> bool:
    """Return whether the prediction assumes the rate at which cached KV is read, because the spec gives none."""
    found = (plan.performance or {}).get("prefill")
    written, disk = plan.spec.operating_point.prefill, plan.spec.kv_cache.disk
    is_given = (written and written.cache_read_rate) or (disk and disk.bandwidth)
    return found is not None and found.cache_reads is not None and not is_given


def _decision_rows(plan: Plan) -> Iterator[Row]:
    """Yield rows on prerequisites, on decisions with their reasons, on other defaults, and on overlaid fields."""
    yield from make_rows(
        "relies_on", *((what, value, "", "assumed", means) for what, value, means in prerequisites(plan))
    )
    for each in plan.decisions:
        if each.why != DEFAULT:
            yield from make_rows("decided", (each.path, _format_setting(each.value), "", "derived", each.why))
        elif not each.path.startswith(GUESSES):
            yield from make_rows("defaults", (each.path, _format_setting(each.value), "", "default"))
    yield from make_rows("overlay", *((field, whom, "", "spec") for whom, field in _overlaid_fields(plan)))


def _format_setting(value: Any) -> str:
    """Return a field's value as YAML writes it, but a long list of numbers as its length and range."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > MAX_NUMBERS and all(isinstance(each, int | float) for each in value):
        return f"{len(value)} numbers, {min(value):,.6g} to {max(value):,.6g}"
    return json.dumps(value)


def _overlaid_fields(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield (objects, `objects: field`) for each field that the overlay sets.

    Its value is left out, since it may be secret.
    """
    overlay = plan.kubernetes.overlay
    if overlay is None:
        return
    whose = [("pods of units", overlay.unit_pod), ("pods of the gateway", overlay.gateway_pod)]
    whose += [
        (f"{each.kind} {each.name}" if each.name else f"every {each.kind}", each.patch) for each in overlay.objects
    ]
    yield from dict.fromkeys((whom, f"{whom}: {field}") for whom, patch in whose for field in _leaf_paths(patch))


def _leaf_paths(patch: Mapping[str, Any], parents: str = "") -> Iterator[str]:
    """Yield the dotted path of each field that `patch` sets to a value."""
    for key, value in patch.items():
        path = f"{parents}.{key}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from _leaf_paths(value, path)
        else:
            yield path

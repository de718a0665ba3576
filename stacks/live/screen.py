"""Draw one look at a deployment for a terminal of any size: `tidemill status --watch`. Pure.

    what it is        name, address, plan; what the day asks for; what stands in the way
    its traffic       requests, tokens a second, cache hits, latencies beside what the plan promises
    its units         a row each; when rows run out, those in trouble first, and how many more there are
    what happened     the last events, newest last

A narrow terminal gets fewer columns, a low one fewer rows.
"""

import textwrap
from collections.abc import Iterator, Sequence
from math import isfinite

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stacks.live.look import Event, Look, Part
from stacks.live.traffic import Latency, Traffic, UnitLoad

__all__ = ["draw", "new_events"]

STYLES = {"ready": "green", "failed": "bold red", "unknown": "bold red", "absent": "red", "off": "dim", "ended": "dim"}
COMING = "yellow"  # of units that start, load, join or drain
FULL = 0.95  # assumed: KV in use above which requests soon leave the cache
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
MIN_EVENTS = 3
AIRY = 16  # rows from which empty ones part the sections
TROUBLED = ("failed", "unknown", "absent")
# (heading, columns of the terminal from which it is shown), in order
COLUMNS = (("unit", 0), ("state", 0), ("ranks", 44), ("req/rank", 60), ("KV", 36), ("balance", 68), ("hits", 76))
WITH_REASON = 90  # columns from which reasons have a column; otherwise the first one is a line of its own


def draw(
    look: Look,
    traffic: Traffic,
    events: Sequence[Event],
    generated: Sequence[float],
    width: int,
    height: int,
    *,
    is_ascii: bool = False,
) -> RenderableType:
    """Return the screen of `width` x `height` characters.

    `events` are all known events; `generated` are the rates of generated tokens for a sparkline.
    """
    head = [*_head(look, width), *_traffic(look, traffic, generated, width, is_ascii)]
    reasons = [] if width >= WITH_REASON else list(_most_urgent_reason(look))
    gap = [Text("")] if height >= AIRY else []
    room = height - len(head) - len(reasons) - 2 * len(gap) - 2  # the headings of units and events
    num_units = max(1, min(len(look.units), room - min(len(events) or 1, MIN_EVENTS)))
    lines = [*head, *gap, _unit_table(look, traffic, width, num_units), *reasons]
    num_events = min(len(events) or 1, room - num_units)
    if num_events > 0:
        happened = events or [("", "nothing has happened since this screen was opened")]
        lines += [*gap, Text("last events", style="bold")]
        lines += [_truncate(Text(" ".join(filter(None, each)))) for each in happened[-num_events:]]
    return Group(*lines)


def new_events(before: Look | None, after: Look, clock: str) -> Iterator[Event]:
    """Yield what has happened between the looks `before` and `after`, at the time `clock`.

    For the first look, yield the events that the deployment has recorded, and each unit map that is not the plan's.
    """
    known = before.events if before else ()
    yield from (each for each in after.events if each not in known)
    maps = {part.name: part.own_map for part in before.units} if before else {}
    for part in after.units:
        known_map = maps.get(part.name)
        if part.own_map != "" and part.own_map != known_map and (part.own_map or known_map):
            own = f"expert map {part.own_map}" if part.own_map else "the plan's expert map again"
            yield clock if before else "", f"{part.name} follows {own}"
    if before is None:
        return
    states = {part.name: (part.state, part.reason) for part in (*before.units, *before.gateways)}
    for part in (*after.units, *after.gateways):
        state, reason = states.get(part.name, (None, None))
        if part.state.partition(" ")[0] != (state or "").partition(" ")[0]:
            yield clock, f"{part.name} {part.state}" + (f": {part.reason}" if part.reason else "")
        elif part.reason is not None and reason is None:
            yield clock, f"{part.name}: {part.reason}"
    yield from ((clock, note) for note in after.notes if note not in before.notes)


def _head(look: Look, width: int) -> Iterator[Text]:
    yield _truncate(Text.assemble((look.name, "bold"), f"  {look.where}"))
    phases = dict.fromkeys(unit.phase for unit in look.units)
    ready = [f"{phase} {_count_ready(look, phase)} ready" for phase in phases]
    ready += [f"{each.name} {each.state}" for each in look.gateways if each.state != "ready"]
    yield _truncate(Text(", ".join(ready)))
    for line in textwrap.wrap(look.day or "", width, break_on_hyphens=False)[:2]:
        yield _truncate(Text(line, style="cyan"))
    for note in look.notes:
        yield _truncate(Text(note, style="red"))


def _count_ready(look: Look, phase: str) -> str:
    units = [unit for unit in look.units if unit.phase == phase and unit.state != "off"]
    return f"{sum(unit.state == 'ready' for unit in units)}/{len(units)}"


def _traffic(
    look: Look, traffic: Traffic, generated: Sequence[float], width: int, is_ascii: bool
) -> Iterator[RenderableType]:
    if traffic.running is None:
        yield _truncate(Text("no gateway shows its metrics", style="dim"))
        return
    waits = f"{traffic.running:.0f} running, {traffic.waiting or 0:.0f} waiting"
    refused = f", {traffic.rejected_per_s:.1f}/s refused" if traffic.rejected_per_s else ""
    yield _truncate(Text.assemble("requests  ", waits, (refused, "red"), f"   cache hits {_percent(traffic.hits)}"))
    rates = f"tokens/s  {_rate(traffic.prompt_tokens_per_s)} in  {_rate(traffic.generated_tokens_per_s)} out  "
    room = min(40, width - len(rates) - 1)
    yield _truncate(Text.assemble(rates, (_sparkline(generated, room, is_ascii), "cyan")))
    for name, latency, slo_ms in (("TTFT", traffic.ttft, look.slo_ms[0]), ("TPOT", traffic.itl, look.slo_ms[1])):
        if latency is not None or slo_ms is not None:
            yield _truncate(_latency(name, latency, slo_ms))


def _latency(name: str, latency: Latency | None, slo_ms: float | None) -> Text:
    """Return the text for a latency of the last minute, red if its mean exceeds `slo_ms`."""
    promise = "" if slo_ms is None else f"   promised {_ms(slo_ms)}"
    if latency is None:
        return Text(f"{name}      no answer in the last minute{promise}", style="dim")
    is_missed = slo_ms is not None and latency.mean_ms > slo_ms
    shown = (f"mean {_ms(latency.mean_ms)}", "bold red" if is_missed else "")
    return Text.assemble(f"{name}      ", shown, f"   p99 {_ms(latency.p99_ms)}{promise}")


def _unit_table(look: Look, traffic: Traffic, width: int, num_rows: int) -> Table:
    """Return the table of units.

    If not all fit, units in trouble come first, and the last row counts the units left out.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), expand=False, header_style="bold", pad_edge=False)
    shown = [heading for heading, from_width in COLUMNS if width >= from_width]
    for heading in shown:
        is_text = heading in ("unit", "state")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    if width >= WITH_REASON:
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    fits = len(look.units) <= num_rows
    units = look.units if fits else sorted(look.units, key=_urgency)[: max(0, num_rows - 1)]
    for unit in units:
        cells = _cells(unit, traffic.units[unit.name])
        reason = [Text(unit.reason or "", style="yellow")] if width >= WITH_REASON else []
        table.add_row(*(cells[heading] for heading in shown), *reason)
    if not fits:
        table.add_row(Text(f"{len(look.units) - len(units)} more", style="dim"))
    return table


def _urgency(unit: Part) -> int:
    """Return a unit's rank by urgency: 0 in trouble, 1 changing, 2 ready, 3 off.

    Tables too small for all units show those of the lowest rank.
    """
    if unit.state in TROUBLED:
        return 0
    return {"ready": 2, "off": 3}.get(unit.state, 1)


def _cells(unit: Part, load: UnitLoad) -> dict[str, Text]:
    is_full = load.kv_usage is not None and load.kv_usage >= FULL
    return {
        "unit": Text(unit.name),
        "state": Text(unit.state, style=STYLES.get(unit.state, COMING)),
        "ranks": Text(str(unit.ranks)),
        "req/rank": Text("-" if load.requests_per_rank is None else f"{load.requests_per_rank:.1f}"),
        "KV": Text(_percent(load.kv_usage), style="red" if is_full else ""),
        "balance": Text("-" if load.balance is None else f"{load.balance:.2f}"),
        "hits": Text(_percent(load.hits)),
    }


def _most_urgent_reason(look: Look) -> Iterator[Text]:
    """Yield the reason of the most urgent troubled unit, for terminals too narrow for a column of reasons."""
    told = [unit for unit in sorted(look.units, key=_urgency) if unit.reason]
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        yield _truncate(Text(f"{told[0].name}{more}: {told[0].reason}", style="yellow"))


def _truncate(text: Text) -> Text:
    """Return the text as one line, which ends with an ellipsis at the terminal's edge."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _sparkline(values: Sequence[float], room: int, is_ascii: bool) -> str:
    blocks = ASCII_BLOCKS if is_ascii else BLOCKS
    shown = [each if isfinite(each) and each > 0 else 0.0 for each in values[-room:]] if room > 0 else []
    most = max(shown, default=0.0)
    return "".join(blocks[0 if most == 0 else round(each / most * (len(blocks) - 1))] for each in shown)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _ms(value: float) -> str:
    """Return milliseconds in a readable unit: `42 ms`, `1.20 s`; `beyond all buckets` for infinity."""
    if value == float("inf"):
        return "beyond all buckets"
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"

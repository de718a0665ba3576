"""The rules of `name` and `gateway`."""

from collections.abc import Iterator

from planner.facts import names
from planner.problems.finding import Finding
from planner.problems.fix import nearest
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues


def unit_names_fit(c: ValidValues) -> Iterator[Finding]:
    """Reject a deployment name that makes a unit's name too long. The last unit of a phase has the longest name."""
    name: str = c["name"]
    num_units = c.num_units
    longest = max((names.unit_name(name, phase, number - 1) for phase, number in num_units.items()), key=len)
    room = names.MAX_UNIT_NAME - (len(longest) - len(name))
    if len(name) <= room:
        return
    rule = f"S402 must have at most {room} characters, it has {len(name)}"
    reason = f"a LeaderWorkerSet's name has at most {names.MAX_UNIT_NAME}, {longest[len(name) :]} included"
    yield Finding("name", name, rule, reason, "shorten it")


def gateway_port_is_free(c: ValidValues) -> Iterator[Finding]:
    """Reject a client port that the gateway already uses for ranks or metrics."""
    port: int = c["gateway.port"]
    taken = {names.Ports.REGISTRY: "the ranks' registry", names.Ports.METRICS: "metrics"}
    if port not in taken:
        return
    others = " and ".join(str(other) for other in taken)
    reason = f"the gateway listens there for {taken[port]}"
    yield Finding("gateway.port", port, f"S405 must differ from {others}", reason, nearest(port + 1))


RULES = (
    Rule("S402", "fields", unit_names_fit),
    Rule("S405", "fields", gateway_port_is_free),
)

"""The rules of `name` and `gateway`."""

import re
from collections.abc import Iterator

from planner.facts import names
from planner.problems.finding import Finding
from planner.problems.fix import for_example, nearest
from planner.rules.object_names import DNS_1035
from planner.rules.rule import Rule
from planner.rules.written import Written

__all__ = ["RULES"]


def name_is_a_dns_label(c: Written) -> Iterator[Finding]:
    """Units, Services and LeaderWorkerSets are named after it."""
    name: str = c["name"]
    if DNS_1035.fullmatch(name):
        return
    rule = "S401 must be lower-case letters, digits and hyphens, from a letter to a letter or digit (DNS-1035)"
    meant = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    fix = nearest(meant) if DNS_1035.fullmatch(meant) else for_example("name: chat")
    yield Finding("name", name, rule, "Kubernetes objects are named after it", fix)


def unit_names_fit(c: Written) -> Iterator[Finding]:
    """The longest name of a unit is that of the last one of a phase."""
    name: str = c["name"]
    num_units = c.num_units
    longest = max((names.unit_name(name, phase, number - 1) for phase, number in num_units.items()), key=len)
    room = names.MAX_UNIT_NAME - (len(longest) - len(name))
    if len(name) <= room:
        return
    rule = f"S402 must have at most {room} characters, it has {len(name)}"
    reason = f"a LeaderWorkerSet's name has at most {names.MAX_UNIT_NAME}, {longest[len(name) :]} included"
    yield Finding("name", name, rule, reason, "shorten it")


def ports_differ(c: Written) -> Iterator[Finding]:
    """The gateway listens for clients, ranks and metrics on one address."""
    port: int = c["gateway.port"]
    taken = {names.Ports.REGISTRY: "the ranks' registry", names.Ports.METRICS: "metrics"}
    if port not in taken:
        return
    others = " and ".join(str(other) for other in taken)
    reason = f"the gateway listens there for {taken[port]}"
    yield Finding("gateway.port", port, f"S405 must differ from {others}", reason, nearest(port + 1))


RULES = (
    Rule("S401", "fields", name_is_a_dns_label),
    Rule("S402", "fields", unit_names_fit),
    Rule("S405", "fields", ports_differ),
)

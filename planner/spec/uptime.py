"""The spec's `uptime` section: failure rates of parts, and the time until their unit serves again."""

from typing import Annotated

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section, quantity_field


class UptimeSpec(Section):
    """How often nodes fail and how long they are missing, used to estimate failures and the spares that are needed."""

    mtbf: Annotated[float, *quantity("time", least="1h", most="100000000h")] | None = Field(
        default=None,
        description="Mean time between failures of a node with its GPUs and NICs. By default it follows from Meta's"
        " counts for each part.",
        examples=["7500h"],
    )
    recovery: Annotated[float, *quantity("time", least="1s", most="24h")] = quantity_field(
        "5min", "Time from a failure until its unit serves again, with a spare in place of the failed part."
    )
    repair: Annotated[float, *quantity("time", least="1min", most="8760h")] = quantity_field(
        "24h", "Time until a node that failed can be used again (the default is assumed)."
    )
    availability: float = Field(
        default=0.999,
        ge=0.5,
        le=0.999999,
        description="Share of the time in which there are enough spares for all nodes that are being repaired.",
        examples=[0.999],
    )

"""The spec's `uptime` section: how often parts fail, and how long it takes until their unit serves again.

The defaults are Meta's counts of 54 days on 16,384 H100 GPUs in 2,048 nodes, 419 unexpected interruptions in all (Llama
3, arXiv 2407.21783, table 5, as glennklockwood.com/garden/component-reliability has it). Those are 21.2 million
GPU-hours and 2.65 million node-hours:

    gpu      148 faulty GPUs + 72 memory + 19 SRAM + 17 system processor + 6 silent corruption + 6 thermal = 268
    node     32 host maintenance + 3 SSD + 3 power + 2 chassis + 2 I/O board + 2 CPU + 2 memory            =  46
    nic      7 NICs, one a GPU
    network  35 switches and cables, by the GPU whose NIC they join

The other 63 are software's: bugs, dependencies, time-outs. They say nothing of an engine that serves, and are left out.
"""

from typing import Annotated

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section, quantity_field

__all__ = ["UptimeSpec"]

Hours = Annotated[float, *quantity("time", least="1h", most="100000000h")]


class UptimeSpec(Section):
    """How often parts fail, used for estimates of failures and of the spares that they take."""

    gpu_mtbf: Hours = quantity_field("79200h", "Mean time between failures of a GPU.", "50000h")
    node_mtbf: Hours = quantity_field(
        "57700h", "Mean time between failures of a node, without its GPUs and NICs.", "50000h"
    )
    nic_mtbf: Hours = quantity_field("3030000h", "Mean time between failures of a NIC.", "1000000h")
    network_mtbf: Hours = quantity_field(
        "607000h", "Mean time between failures of the cables and switches that join one NIC.", "500000h"
    )
    recovery: Annotated[float, *quantity("time", least="1s", most="24h")] = quantity_field(
        "5min", "Time from a failure until its unit serves again, on a spare in place of what failed."
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

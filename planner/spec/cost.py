"""The spec's `cost` section: what GPUs cost, and what tokens sell for.

Amounts are in US dollars. Times of day are in the schedule's time zone, and each entry of `hours` holds until the next
one begins, like the windows of a schedule.
"""

from typing import Literal

from pydantic import Field

from planner.facts.catalog import GPUS
from planner.spec.section import Section

MAX_USD = 1e6  # for a GPU-hour or a million tokens
_A_GPU = next(name for name in GPUS if name != "cpu")
TIME_OF_DAY = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"

SupplyKind = Literal["own", "rented", "spot"]


class SupplySpec(Section):
    """Nodes with a price of their own."""

    kind: SupplyKind = Field(
        description="own nodes are paid all day, on or off; rented and spot nodes while they are on, and spot nodes"
        " may be taken back.",
        examples=["own"],
    )
    gpu: str | None = Field(
        default=None, min_length=1, description="GPU model of these nodes, by default the cluster's.", examples=[_A_GPU]
    )
    nodes: int | None = Field(
        default=None, ge=1, le=20_000, description="Number of these nodes, by default unlimited.", examples=[128]
    )
    usd_per_gpu_hour: float = Field(ge=0, le=MAX_USD, description="Price of a GPU-hour.", examples=[1.4])


class PriceHourSpec(Section):
    """A factor on prices, from a time of day until the next entry's."""

    at: str = Field(
        pattern=TIME_OF_DAY, description="Time of day from which the factor applies, as HH:MM.", examples=["00:30"]
    )
    factor: float = Field(ge=0, le=100, description="Factor on prices: 0.25 means 75 % off.", examples=[0.25])


class PriceSpec(Section):
    """What customers pay for a million tokens."""

    input_hit: float = Field(
        ge=0, le=MAX_USD, description="Price of a million prompt tokens whose KV comes from the cache.", examples=[0.14]
    )
    input_miss: float = Field(
        ge=0, le=MAX_USD, description="Price of a million prompt tokens that are computed.", examples=[0.55]
    )
    output: float = Field(ge=0, le=MAX_USD, description="Price of a million output tokens.", examples=[2.19])
    hours: list[PriceHourSpec] = Field(
        default=[],
        max_length=1440,
        description="Factors on these prices by time of day, such as discounts.",
        examples=[[{"at": "00:30", "factor": 0.25}, {"at": "08:30", "factor": 1}]],
    )


class DiskPriceSpec(Section):
    """What the disks of kv_cache cost. A TB has 1e12 bytes."""

    usd_per_tb_month: float = Field(
        ge=0,
        le=MAX_USD,
        description="Price of a TB for a month, or of a bought drive over the months that it is used.",
        examples=[4.0],
    )
    usd_per_tb_written: float = Field(
        default=0.0,
        ge=0,
        le=MAX_USD,
        description="Price of writing a TB. A drive that wears out by writing costs its price over the TB that its"
        " data sheet lets one write.",
        examples=[0.05],
    )
    usd_per_tb_read: float = Field(
        default=0.0, ge=0, le=MAX_USD, description="Price of reading a TB, as some network disks have.", examples=[30.0]
    )


class CostSpec(Section):
    """Prices, from which a day's cost and income are estimated. They change nothing that is deployed."""

    usd_per_gpu_hour: float = Field(
        ge=0,
        le=MAX_USD,
        description="Price of a GPU-hour while its node is on, for nodes beyond the supplies.",
        examples=[2.0],
    )
    supplies: list[SupplySpec] = Field(
        default=[],
        max_length=100,
        description="Nodes with other prices. They are used in this order, before nodes at usd_per_gpu_hour.",
        examples=[[{"kind": "own", "nodes": 128, "usd_per_gpu_hour": 1.4}]],
    )
    prices: PriceSpec | None = Field(
        default=None,
        description="What customers pay for tokens.",
        examples=[{"input_hit": 0.14, "input_miss": 0.55, "output": 2.19}],
    )
    disk: DiskPriceSpec | None = Field(
        default=None,
        description="What the disks of kv_cache cost. The plan shows it beside what cache hits save; the day's cost is"
        " that of nodes alone.",
        examples=[{"usd_per_tb_month": 4.0, "usd_per_tb_written": 0.05}],
    )

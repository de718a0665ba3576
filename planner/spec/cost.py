"""The spec's `cost` section: what GPUs cost, and what tokens sell for.

Amounts are in US dollars, and the same all day.
"""

from typing import Annotated

from pydantic import Field

from planner.facts.catalog import GPUS
from planner.spec.section import Section

MAX_USD = 1e6  # for a GPU-hour or a million tokens
MILLION = 1e6
_A_GPU = next(name for name in GPUS if name != "cpu")


class PriceSpec(Section):
    """What customers pay for a million tokens."""

    input_hit: float = Field(
        ge=0, le=MAX_USD, description="Price of a million prompt tokens whose KV comes from the cache.", examples=[0.14]
    )
    input_miss: float = Field(
        ge=0, le=MAX_USD, description="Price of a million prompt tokens that are computed.", examples=[0.55]
    )
    output: float = Field(ge=0, le=MAX_USD, description="Price of a million output tokens.", examples=[2.19])

    def income_usd(self, hits: float, misses: float, output: float) -> float:
        """Return the income in US dollars from `hits`, `misses` and `output` tokens."""
        return (hits * self.input_hit + misses * self.input_miss + output * self.output) / MILLION


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
        description="Price of a GPU-hour while its node is on.",
        examples=[2.0],
    )
    gpus: dict[str, Annotated[float, Field(ge=0, le=MAX_USD)]] = Field(
        default={},
        description="Prices of a GPU-hour of the GPU models of phases that cost something else, by model.",
        examples=[{_A_GPU: 1.1}],
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

    def rate_of(self, gpu: str) -> float:
        """Return the price of an hour of one GPU of the model `gpu`."""
        return self.gpus.get(gpu, self.usd_per_gpu_hour)

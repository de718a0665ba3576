"""Published results that engines' constants are fitted to, and DeepSeek's service, which nothing is fitted to.

A row is one phase of an engine on a GPU. Sources: github.com/deepseek-ai/profile-data 44960242 README.md, whose rates
are those that github.com/lm-sys/lm-sys.github.io 2db4e404 blog/2025-05-05-large-scale-ep.md derives; that blog itself;
moreh.io/technical-report 251113; open-infra-index, day 6 (the service).
"""

from dataclasses import dataclass, replace

from planner.estimate.throughput.copies import expected_copies
from planner.estimate.throughput.engines import EngineModel, engine_model
from planner.estimate.throughput.imbalance import sampling_imbalance
from planner.estimate.throughput.machine import build_machine
from planner.estimate.throughput.point import OperatingPoint
from planner.estimate.throughput.predict import Case, saturated_rate
from planner.estimate.throughput.stages import Imbalance, UnitShape
from planner.estimate.throughput.work import work_of
from planner.facts.catalog import GPUS
from planner.families import MODELS

V3 = MODELS["deepseek-v3"]
BALANCED_MAP = 1.05  # what 9 slots on each of 32 GPUs leave of drawn loads, drift and luck included


@dataclass(frozen=True)
class Row:
    """What was published, as a case, and the tokens/s of one GPU."""

    name: str
    engine: str
    phase: str
    gpu: str
    unit: UnitShape
    overlap: str
    point: OperatingPoint
    measured: float
    imbalance: Imbalance | None = None  # of the plan's map; None where routing was simulated to be even

    def case(self, engine: EngineModel | None = None) -> Case:
        """Return the case, of its own engine or of another."""
        return Case(
            phase=self.phase,
            machine=build_machine(GPUS[self.gpu], self.gpu),
            model=work_of(V3, "fp8", "bf16"),
            unit=self.unit,
            overlap=self.overlap,
            engine=self._without_excess(engine or engine_model(self.engine, self.gpu)),
            imbalance=self.imbalance or Imbalance(),
            exchange=expected_copies(V3, self.unit.num_gpus, self.unit.num_nodes, groups_on_nodes=True),
            point=self.point,
        )

    def _without_excess(self, engine: EngineModel) -> EngineModel:
        return engine if self.imbalance else replace(engine, imbalance={})

    def error(self, engine: EngineModel | None = None) -> float:
        """Return predicted over published, less 1."""
        return saturated_rate(self.case(engine)) / self.measured - 1


def unit(num_gpus: int, slots: int, gpus_per_node: int = 8) -> UnitShape:
    return UnitShape(num_gpus, max(1, num_gpus // gpus_per_node), 1, slots, 256)


def prompts(length: int) -> OperatingPoint:
    return OperatingPoint(step_tokens=16_384, prompt_tokens=length)


PROFILE_PREFILL = Row(
    "profile, prefill", "deepseek", "prefill", "h800", unit(32, 8), "dual_batch", prompts(4096), 62_713 / 8
)
PROFILE_DECODE = Row(
    *("profile, decode", "deepseek", "decode", "h800", unit(128, 2), "five_stage"),
    *(OperatingPoint(requests=128, kv_tokens=4096), 18_598 / 8),
)
SGLANG_BALANCED = Row(
    "SGLang, prefill, perfect balance",
    "sglang",
    "prefill",
    "h100",
    unit(32, 9),
    "dual_batch",
    prompts(4096),
    59_337 / 8,
)


def sglang_real(length: int, of_node: float) -> Row:
    """Return SGLang's prefill with the routing that its prompts have; its map was made for the same data."""
    name = f"SGLang, prefill, {length:,} tokens, real routing"
    row = replace(SGLANG_BALANCED, name=name, point=prompts(length), imbalance=Imbalance(BALANCED_MAP))
    return replace(row, measured=of_node / 8)


SGLANG_REAL = sglang_real(2048, 54_543)
SGLANG_REAL_4K = sglang_real(4096, 50_302)  # SGLANG_BALANCED's point: only routing differs
MOREH = Row(
    *("Moreh's vLLM, decode", "vllm", "decode", "mi300x", unit(8, 32), "none"),
    *(OperatingPoint(requests=450, kv_tokens=512 + 512 / 2), 2_696),
    Imbalance(sampling_imbalance(8, 450 * 8)),
)
ROWS = (PROFILE_PREFILL, PROFILE_DECODE, SGLANG_BALANCED, SGLANG_REAL_4K, SGLANG_REAL, MOREH)


# Published, and kept aside: no constant is fitted to it.
SGLANG_DECODE = Row(
    *("SGLang, decode, real routing", "sglang", "decode", "h100", unit(72, 4), "five_stage"),
    *(OperatingPoint(requests=256, kv_tokens=2000), 22_282 / 8),
    Imbalance(BALANCED_MAP),
)
ASIDE = (SGLANG_DECODE, sglang_real(1024, 57_674))


# What one draft gained was published, and neither the rate nor which share of drafts was right:
# github.com/lm-sys/lm-sys.github.io 0947bdc0 blog/2025-07-17-mtp.md, case study 2; answers have 100 tokens.
SGLANG_DRAFTS = Row(
    *("SGLang, decode with a draft", "sglang", "decode", "h200", unit(96, 3), "five_stage"),
    *(OperatingPoint(requests=128, kv_tokens=2050), 0.0),
    Imbalance(BALANCED_MAP),
)


def service_decode(requests: float, imbalance: Imbalance) -> Row:
    """Return DeepSeek's service: its requests a GPU were not published, and follow from 20 to 22 tokens/s a user."""
    point = OperatingPoint(requests=requests, kv_tokens=4989)
    return Row(
        "service, decode", "deepseek", "decode", "h800", unit(144, 2), "five_stage", point, 14_800 / 8, imbalance
    )


def service_prefill(imbalance: Imbalance) -> Row:
    """Return DeepSeek's service: of its 73.7k tokens/s a node, hits counted, 32.2k were computed.

    The mean prompt was not published.
    """
    point = replace(prompts(3000), cache_hit_rate=0.563)
    row = replace(PROFILE_PREFILL, name="service, prefill", unit=unit(32, 9), point=point, imbalance=imbalance)
    return replace(row, measured=32_206 / 8)

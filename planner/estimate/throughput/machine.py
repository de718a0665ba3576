"""Describe one GPU for the speed model: its nominal rates, and the efficiency of its kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.estimate.throughput.dimensions import BytesPerSecond, FlopsPerSecond, Seconds
from planner.estimate.throughput.kernels import Kernels, Origin, kernels_for
from planner.facts.catalog import Gpu
from planner.facts.quantisation import Format
from planner.facts.quantities import BITS_PER_BYTE

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6

# Candidates for the bottleneck: field of `Machine` -> its name for people.
RESOURCES = {
    "fp8": "FP8 matmuls",
    "bf16": "BF16 matmuls and core attention",
    "fp4": "FP4 matmuls",
    "memory": "memory bandwidth",
    "nvlink": "NVLink",
    "nic": "NICs",
}


@dataclass(frozen=True)
class Machine:
    """The nominal rates of one GPU and the constants of its kernels. `nic` is the GPU's part of a shared NIC."""

    name: str
    fp8: FlopsPerSecond
    bf16: FlopsPerSecond
    fp4: FlopsPerSecond
    memory: BytesPerSecond
    nvlink: BytesPerSecond
    nic: BytesPerSecond
    kernels: Kernels
    origins: Mapping[str, Origin]

    def matmuls(self, kept_in: Format) -> FlopsPerSecond:
        """Return the rate of matmuls whose weights are stored in the format `kept_in`.

        INT4 in blocks of 32, and MXFP4 with BF16 activations, are converted to BF16. INT4 in blocks of 128 is converted
        to FP8, as its activations are.
        """
        if kept_in in ("fp8", "fp8_plain", "mxfp8", "int4"):
            return self.fp8
        if kept_in == "nvfp4":
            return self.fp4
        return FlopsPerSecond(self.bf16 / 2) if kept_in == "fp32" else self.bf16

    def fixed(self, microseconds: float) -> Seconds:
        """Return a fixed time of the kernels' constants, given in microseconds, in seconds."""
        return Seconds(microseconds * MICRO)

    def scale_rate(self, resource: str, factor: float) -> "Machine":
        """Return the machine with the rate of one resource multiplied by `factor`."""
        return replace(self, **{resource: getattr(self, resource) * factor})


def build_machine(gpu: Gpu, name: str) -> Machine | None:
    """Return the rates and kernel constants of GPU `name`, or None if its rates are unknown, as on `cpu`."""
    return machine_with_kernels(gpu, name, *kernels_for(name))


def machine_with_kernels(gpu: Gpu, name: str, kernels: Kernels, origins: Mapping[str, Origin]) -> Machine | None:
    """Return the rates of GPU `name` with the given kernel constants, or None if its rates are unknown."""
    if gpu.bf16_tflops is None or gpu.memory_gb_per_s is None:
        return None
    fp8 = gpu.fp8_tflops or gpu.bf16_tflops
    return Machine(
        name=name,
        fp8=FlopsPerSecond(fp8 * TERA),
        bf16=FlopsPerSecond(gpu.bf16_tflops * TERA),
        fp4=FlopsPerSecond((gpu.fp4_tflops or fp8) * TERA),
        memory=BytesPerSecond(gpu.memory_gb_per_s * GIGA),
        nvlink=BytesPerSecond((gpu.nvlink_gb_per_s or 0) * GIGA),
        nic=BytesPerSecond((gpu.nic_gbps or 0) * GIGA / BITS_PER_BYTE / (gpu.gpus_per_nic or 1)),
        kernels=kernels,
        origins=origins,
    )

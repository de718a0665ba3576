"""Read and write files of expert maps, in our format and in the formats of other engines.

    ours           JSON; `physical_to_logical` [layers][slots] among other keys
    sglang         JSON for --init-expert-location; `physical_to_logical_map` [layers][slots]
    tensorrt-llm   YAML for moe_config.load_balancer; `initial_global_assignments` {layer: [slots]}, `num_slots`
    vllm-ascend    JSON for its `expert_map_path`: experts of each device of each layer

Each can be written. Ours and SGLang's are also read as the map in service. All number slots GPU by GPU, as we do.

The formats number layers differently. DeepSeek-V3 has dense layers 0 to 2 and 58 MoE layers 3 to 60, so `first_layer`
is 3. It is 1 for Kimi-K2 and GLM-4.5, and 0 for Qwen3, MiniMax-M2, gpt-oss and DeepSeek-V4, whose hash layers have
experts too.
    ours           row i is MoE layer i: 58 rows
    sglang         row i is layer i of the model: 61 rows. SGLang silently accepts a file of 58 rows and gives layers 3
                   to 57 the maps of layers 6 to 60. It reads the rows of dense layers too, and each must have every
                   expert: they get SGLang's own trivial map, expert s modulo their number in slot s
    tensorrt-llm   key i is layer i of the model: keys 3 to 60; a missing key is an error there
    vllm-ascend    entry i is MoE layer i: 58 entries, counted as the layers are built

Sources, read in November 2026; nothing is copied from them:
    sgl-project/sglang 01fec5c2e61f and release 0.5.23, python/sglang/srt/eplb/expert_location.py (init_trivial,
    init_by_mapping, and the reader at the end); models: num_layers is num_hidden_layers in each
    NVIDIA/TensorRT-LLM 76a646e90c8e, examples/wide_ep/ep_load_balancer/generate_eplb_config.py, and README.md beside it
    (2a595f815766: keys 3 to 60 for DeepSeek-R1); MoeLoadBalancerConfig.get_layer_initial_global_assignments
    vllm-project/vllm-ascend 39835cbd5403, vllm_ascend/eplb/adaptor/vllm_adaptor.py (_export_tensor_to_file records),
    and its unit test; 182b75ea84ff, vllm_ascend/eplb/core/eplb_utils.py (expert_file_to_tensor reads) and
    vllm_ascend/ops/fused_moe/routed_experts.py (moe_counter numbers the layers)
    vllm-project/vllm 0014ec6c58e1, vllm/distributed/eplb/eplb_state.py: vLLM itself reads and records neither maps nor
    loads; pull requests 41141 (loads and maps as JSONL) and 53022 (maps) are open
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.facts.files import explain_unreadable, read_file
from planner.problems.finding import Finding
from planner.problems.fix import for_example

Engine = Literal["sglang", "tensorrt-llm", "vllm-ascend"]
NUMBERED_BY_MODEL: tuple[Engine, ...] = ("sglang", "tensorrt-llm")  # formats whose layer numbers count dense layers
FILE_TYPES: dict[Engine, str] = {"sglang": "json", "tensorrt-llm": "yaml", "vllm-ascend": "json"}
Map = tuple[tuple[int, ...], ...]  # [layers][slots]: the logical expert in each slot

SGLANG = "physical_to_logical_map"
KEYS = ("physical_to_logical", SGLANG)  # in our files, in SGLang's


@dataclass(frozen=True)
class MapFile:
    """The rows of a map file, one per layer, and whether dense layers have rows too."""

    rows: Map
    is_numbered_by_model: bool = False

    def num_dense_layers(self, num_moe_layers: int) -> int:
        """Return the number of rows for dense layers. They come before the rows of MoE layers."""
        return max(len(self.rows) - num_moe_layers, 0) if self.is_numbered_by_model else 0


def missing_output(engine: Engine, on_stdout: str, example: str) -> Finding:
    """Return the finding for `--export` without an output file, when `on_stdout` goes to stdout already."""
    rule, reason = "S809 must come with -o", f"{on_stdout} itself goes to stdout"
    return Finding("--export", engine, rule, reason, for_example(f"-o {example}"))


def export_map(engine: Engine, rows: Sequence[Sequence[int]], num_gpus: int, first_layer: int) -> str:
    """Return the text of a map file for `engine`. `first_layer` is the index of `rows[0]`'s layer in the model."""
    if engine == "sglang":
        return _json({SGLANG: [_trivial_row(rows[0])] * first_layer + [list(row) for row in rows]})
    if engine == "tensorrt-llm":
        layers = [f"  {first_layer + index}: [{', '.join(map(str, row))}]" for index, row in enumerate(rows)]
        return "\n".join(
            ("initial_global_assignments:", *layers, f"num_slots: {len(rows[0])}", "layer_updates_per_iter: 0", "")
        )
    return _json(
        {
            "moe_layer_count": len(rows),
            "layer_list": [
                {"layer_id": index, "device_count": num_gpus, "device_list": _devices(row, num_gpus)}
                for index, row in enumerate(rows)
            ],
        }
    )


def _trivial_row(row: Sequence[int]) -> list[int]:
    """Return SGLang's default row for a dense layer, with as many slots and experts as `row`."""
    num_experts = max(row) + 1
    return [slot % num_experts for slot in range(len(row))]


def _devices(row: Sequence[int], num_gpus: int) -> list[dict[str, Any]]:
    slots_per_gpu = len(row) // num_gpus
    return [
        {"device_id": gpu, "device_expert": list(row[gpu * slots_per_gpu : (gpu + 1) * slots_per_gpu])}
        for gpu in range(num_gpus)
    ]


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document) + "\n"


def read_map(path: Path) -> MapFile | Finding:
    """Return the map in a file of our format or SGLang's, or the finding that the file is wrong."""
    try:
        document = json.loads(read_file(path))
    except OSError as error:
        reason_and_fix = explain_unreadable(error, "the current folder")
        return Finding("--previous", str(path), "S603 must be a readable file", *reason_and_fix)
    except (ValueError, RecursionError):
        return _not_a_map(path, "it is not JSON")
    key = next((key for key in KEYS if key in document), None) if isinstance(document, dict) else None
    rows = document[key] if key else document
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        return _not_a_map(path, f"it has no list of rows under {' or '.join(KEYS)}")
    if len({len(row) for row in rows}) > 1:
        return _not_a_map(path, "its rows differ in length")
    if any(type(expert) is not int for row in rows for expert in row):
        return _not_a_map(path, "it holds something else than whole numbers")
    return MapFile(tuple(tuple(row) for row in rows), is_numbered_by_model=key == SGLANG)


def _not_a_map(path: Path, reason: str) -> Finding:
    rule = "S806 must hold an expert map, [layers][slots]"
    return Finding("--previous", str(path), rule, reason, "give the JSON of tidemill experts, or SGLang's file")

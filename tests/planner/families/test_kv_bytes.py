"""What the planner reckons a request's KV to be is what SGLang allocates, for every family and at every context.

The table's own figures are held against SGLang's code in `tests/planner/engines/test_kv_bytes.py`.
"""

from functools import cache

import pytest

from planner.families import model_of
from planner.families.registry import FAMILIES, TOWERS
from tests.planner.engines.test_kv_bytes import TABLE, config_of

pytestmark = pytest.mark.slow

BYTES_PER_VALUE = {"bf16": 2, "fp8": 1}
LACKING = {"deepseek_v2": {"num_experts_per_tok": 6}}  # in transformers' defaults
UNDER_ANOTHER_NAME = {"kimi_k2": "deepseek_v3"}  # whose class of transformers has the same keys


@cache
def model(name):
    """The planner's model of a family of the table: transformers' config with the keys that decide about KV."""
    from transformers import CONFIG_MAPPING

    model_type = name.split(",")[0]
    written = LACKING.get(model_type, {}) | config_of(TABLE["families"][name])
    made = CONFIG_MAPPING[UNDER_ANOTHER_NAME.get(model_type, model_type)]
    has_towers = "text_config" in getattr(made, "sub_configs", {})
    config = (made(text_config=written) if has_towers else made(**written)).to_dict()
    config |= {"model_type": model_type, "architectures": [TABLE["families"][name]["architecture"]]}
    return model_of(config, "config.json")


@pytest.mark.parametrize("kv", BYTES_PER_VALUE)
@pytest.mark.parametrize("name", TABLE["families"])
def test_the_planner_reckons_with_what_sglang_allocates(name, kv):
    """Bytes of one request at 1K, 32K and 256K tokens; DeepSeek-V4's KV has one type."""
    figures = TABLE["families"][name]["bytes"].get(kv, TABLE["families"][name]["bytes"]["fp8"])

    assert name.split(",")[0] in {*FAMILIES, *TOWERS}
    assert [model(name).kv_bytes(tokens, BYTES_PER_VALUE[kv]) for tokens in TABLE["contexts"]] == figures

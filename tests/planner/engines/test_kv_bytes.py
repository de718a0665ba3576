"""The table of KV bytes is what SGLang's own sizing functions say, for every family, at 1K, 32K and 256K tokens."""

from pathlib import Path

import pytest
import yaml

from tests.planner.engines.sglang_kv import request_bytes
from tests.planner.engines.wheels import require

pytestmark = pytest.mark.slow

TABLE = yaml.load((Path(__file__).parents[1] / "data/kv_bytes.yaml").read_text(), Loader=yaml.CSafeLoader)


@pytest.fixture(scope="module")
def sources():
    """SGLang's, unpacked; skips where its wheel cannot be had."""
    return require("sglang")


def config_of(family):
    """The keys of config.json that decide about KV, with lists written out."""
    repeated = {key: values * times for key, (values, times) in family.get("repeated", {}).items()}
    return family["config"] | repeated


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("name", TABLE["families"])
def test_sglang_sizes_its_pools_so(sources, name, kv):
    """Bytes of one request, all layers, without rounding."""
    family = TABLE["families"][name]
    config = config_of(family)
    sized = [request_bytes(sources, family["architecture"], config, kv, tokens) for tokens in TABLE["contexts"]]

    assert sized == family["bytes"].get(kv, sized)
    assert family["bytes"].keys() == ({"fp8"} if "compress_ratios" in config else {"bf16", "fp8"})

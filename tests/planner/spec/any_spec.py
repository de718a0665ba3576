"""Random specs over the whole schema: `specs(path, kind)` draws a spec that holds that kind of value in that field.

A spec starts as one whose parts go together, so that many plan: experts that divide, whole nodes, enough slots. Then
the value that is asked for is put into it, and now and then another one of the schema's, from the ends of its range as
likely as from between. `EVERYTHING` is all that can be asked for, by the schema itself (`spec_schema.py`).
"""

from copy import deepcopy
from itertools import pairwise

from hypothesis import strategies as st

from planner.facts.catalog import GPUS
from planner.facts.terms import PHASES
from planner.families import MODELS
from planner.spec.phase import MAX_EP_SIZE, MAX_REDUNDANT
from tests.planner.spec.spec_schema import SCHEMA, all_kinds, options, property_schemas

__all__ = ["EVERYTHING", "OWN_GPU", "specs"]

EVERYTHING = tuple(all_kinds())

SMALL = {"config": "config.json"}  # 32 experts in 4 MoE layers
OWN_GPU = {"name": "own", "memory": "200GiB", "nvlink": "400GB/s", "nic": "400Gbps", "gpus_per_nic": 2}
PAIR = {"prefill", "decode"}
PLACES = ("rack", "leaf")
ODD_TEXTS = ("x", "-", "é", "Not a Name", "../..", "7", "x" * 300)

# Texts that are right, where the schema's example names what is not there or only one of several kinds.
TEXTS = {
    "cluster.gpu": tuple(GPUS),
    "model": tuple(MODELS),
    "model.config": ("config.json", "grouped.json", "v2_lite.json"),
    "model.checkpoint": ("bundled:demo", "/models/weights"),
    "expert_load.file": ("loads.json",),
    "traffic.trace": ("prompts.jsonl",),
    "cluster.nodes[].gpu": ("own", *GPUS),
    "cluster.spares[]": ("n1", "node-1"),
    "cluster.nodes[].taints[]": ("a=b:NoExecute", "a:NoSchedule", "a=b:PreferNoSchedule"),
    "kubernetes.image_pull_secrets[]": ("registry-login", "mirror.login"),
    "kubernetes.volumes[].mount_path": ("/models", "/data/weights"),
    "kubernetes.networks[]": ("rdma-0", "infra/rdma-1@net1"),
    "kubernetes.nics.hca[]": ("mlx5_0", "mlx5_1:1"),
    "kubernetes.controller.heal.conditions[]": ("GPUMissing", "example.com/Sound=False"),
    "kubernetes.controller.heal.labels[]": ("example.com/gpu=bad", "broken="),
    "kubernetes.rdma.resource": ("rdma/hca", "nvidia.com/roce"),
    "kubernetes.stage.source": ("/models", "/data/weights/r1"),
    "kubernetes.overlay.objects[].name": ("any-gateway", "any-decode-0"),
    "schedule.timezone": ("UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires"),
    "schedule.windows[].at": ("00:00", "05:59", "12:30", "23:59"),
    "schedule.other_days[].windows[].at": ("00:00", "05:59", "12:30", "23:59"),
    **dict.fromkeys(
        ("schedule.other_days[].days[]", "traffic.other_days[].days[]"), ("sunday", "2026-12-24", "2026-02-30", "mon")
    ),
}

# Sections whose keys are the user's.
MAPPINGS = {
    **dict.fromkeys(
        ("kubernetes.env", "prefill.env", "decode.env", "mixed.env"),
        ({}, {"NCCL_DEBUG": "INFO", "HF_TOKEN": {"secret": "hub", "key": "token"}}, {"A-B": 1}),
    ),
    "kubernetes.node_selector": ({}, {"pool": "inference"}, {"pool": 1}),
    "kubernetes.overlay.unit_pod": ({}, {"metadata": {"annotations": {"a": "b"}}}, {"spec": {"nodeName": "a"}}),
    "kubernetes.overlay.gateway_pod": ({}, {"spec": {"nodeSelector": {"a": "b"}}}, {"spec": {"containers": [1]}}),
    "kubernetes.overlay.objects[].patch": ({}, {"spec": {"type": "LoadBalancer"}}, {"metadata": {"name": "other"}}),
}


@st.composite
def specs(draw, path, kind):
    """A whole spec with a value of `kind` at `path`."""
    spec = draw(sound_specs(path))
    if draw(st.integers(0, 2)) == 0:
        put(draw, spec, *draw(st.sampled_from([each for each in EVERYTHING if _phases_of(each[0]) <= spec.keys()])))
    put(draw, spec, path, kind)
    phase, _, field = path.partition(".")
    if phase in PAIR and field in ("max_request_tokens", "precision", "kv_precision") and draw(st.booleans()):
        for other in PAIR & spec.keys():
            spec[other] |= {field: spec[phase][field]} if field in spec[phase] else {}
    return spec


@st.composite
def sound_specs(draw, path):
    """A spec whose parts go together, with those sections that `path` is in."""
    model = draw(st.sampled_from([*[SMALL] * 10, *MODELS]))
    experts = 32 if model is SMALL else MODELS[model].num_routed_experts
    per_node = draw(st.sampled_from([8, 8, 1, 4, 64]))
    layouts = [["prefill", "decode"], ["prefill", "decode"], ["mixed"]]
    phases = draw(st.sampled_from([each for each in layouts if _phases_of(path) <= set(each)]))
    coverage = draw(st.sampled_from(["none"] * 10 + ["node", "rack"]))
    shared = draw(shared_by_phases())
    sections = {phase: draw(phase_sections(experts, per_node, coverage)) | shared for phase in phases}
    cluster = {"gpu": draw(st.sampled_from([OWN_GPU] * 4 + [*GPUS])), "gpus_per_node": per_node}
    spec = {"version": 1, "name": "any", "model": model}
    spec |= {"cluster": cluster | draw(nodes(is_listed=_is_listed(path)))} | sections
    spec |= {"coverage": coverage} if coverage != "none" else {}
    if path.startswith("schedule.") or (not path.endswith("units") and draw(st.booleans())):
        spec["schedule"] = {"windows": draw(windows(list(sections)))}
    elif draw(st.booleans()):
        for section in sections.values():
            section["units"] = draw(st.sampled_from([1] * 12 + [2, 3, 1000]))
    return deepcopy(spec)  # to be changed, and a GPU is drawn more than once


def _phases_of(path):
    """The phases without which a spec has no place for `path`."""
    names = [name for name in PHASES if path.startswith(f"{name}.") or path.endswith(f"{name}_units")]
    return PAIR if PAIR & set(names) else set(names)


def _is_listed(path):
    """Whether nodes must be listed, must be counted, or (None) may be either."""
    return True if "nodes[]" in path else False if path.endswith("_size") else None


@st.composite
def phase_sections(draw, experts, per_node, coverage):
    """One phase, most often with experts that divide and whole nodes; otherwise anything in range."""
    sizes = [size for size in range(1, 2 * experts + 1) if size <= per_node or size % per_node == 0]
    size = draw(st.sampled_from([*sizes[:6] * 12, *sizes, draw(st.integers(1, MAX_EP_SIZE))]))
    slots = draw(st.integers(0, 2))
    fitting = max(0, -experts % size + slots * size if size > 1 else 0)
    if coverage != "none":
        fitting = max(fitting, experts + -2 * experts % size)
    fitting = min(fitting, MAX_REDUNDANT)
    sizes = [(size, fitting)] * 12 + [("auto", "auto"), ("auto", 0), (size, "auto"), ("auto", fitting)]
    ep_size, redundant = draw(st.sampled_from(sizes))
    return {
        "ep_size": ep_size,
        "redundant_experts": redundant,
        "overlap": draw(st.sampled_from(["none", "dual_batch", "five_stage"])),
        "max_requests": draw(st.sampled_from([32, 32, 32, 1, 256, "auto", draw(st.integers(1, 65_536))])),
        "max_batch_tokens": draw(st.sampled_from([4096, 4096, 4096, 1, 16_384, draw(st.integers(1, 10_000_000))])),
    }


@st.composite
def shared_by_phases(draw):
    """What prefill and decode must have alike, or may as well."""
    tokens, attention_tp = draw(st.sampled_from([2048, 2])), draw(st.sampled_from([1] * 16 + [2]))
    precision = draw(st.sampled_from(["fp8", "bf16", "fp32"]))
    return {"max_request_tokens": tokens, "attention_tp": attention_tp, "precision": precision}


@st.composite
def windows(draw, phases):
    """Windows of a day that count these phases."""
    most = draw(st.sampled_from([1, 1, 1, 3, 3, 3, 100]))
    times = draw(st.lists(st.sampled_from(TEXTS["schedule.windows[].at"]), min_size=1, max_size=3, unique=True))
    counts = st.fixed_dictionaries({f"{phase}_units": st.integers(1, most) for phase in phases})
    return [{"at": at} | draw(counts) for at in times]


@st.composite
def nodes(draw, is_listed):
    """A count with places of some size, or a list."""
    if is_listed is None:
        is_listed = draw(st.booleans())
    if not is_listed:
        sizes = {f"{place}_size": draw(st.integers(1, 64)) for place in ("rack", "leaf") if draw(st.booleans())}
        return {"nodes": draw(st.sampled_from([300] * 8 + [2000, 8, 1]))} | sizes
    count = draw(st.sampled_from([40, 40, draw(st.integers(1, 40))]))
    per_place = draw(st.fixed_dictionaries({place: st.integers(1, 8) for place in PLACES}))
    listed = [
        {"name": f"n{index}"} | {place: f"{place}{index // size}" for place, size in per_place.items()}
        for index in range(count)
    ]
    extra = {"cordoned": st.booleans(), "gpus": st.integers(0, 64), "taints": st.just(["a=b:NoExecute"])}
    for index in draw(st.lists(st.integers(0, count - 1), max_size=4)):
        listed[index] |= draw(st.fixed_dictionaries({}, optional=extra))
    return {"nodes": listed}


def put(draw, data, field, kind):
    """A value of `kind` at `field` of `data`, with the sections and lists on the way to it."""
    schema, here = SCHEMA, []
    parts = [part for part in field.replace("[]", ".[]").split(".") if part]
    for part, following in pairwise([*parts, None]):
        here.append(part)
        path = ".".join(here).replace(".[]", "[]")
        is_item = part == "[]"
        schema = _items(schema) if is_item else property_schemas(schema)[part]
        key = draw(st.integers(0, len(data) - 1)) if is_item else part
        if following is None:
            data[key] = draw(values(schema, path, kind))
            return
        container = list if following == "[]" else dict
        if not isinstance(data[key] if is_item else data.get(key), container) or not data[key]:
            data[key] = draw(values(schema, path, "items" if container is list else "section"))
        data = data[key]


@st.composite
def values(draw, schema, path, kind=None):
    """A value of `kind`, or of any."""
    kinds = [each for field, each in all_kinds(schema, path) if field == path]
    kind = kind or draw(st.sampled_from(kinds))
    if kind == "section" and path in MAPPINGS:
        return draw(st.sampled_from(MAPPINGS[path]))
    if kind == "section":
        return draw(whole_sections(property_schemas(schema), path))
    if kind == "items":
        return draw(st.lists(values(_items(schema), f"{path}[]"), min_size=1, max_size=2))
    if kind == "text":
        right = TEXTS.get(path) or tuple(each for each in schema["examples"] if isinstance(each, str))
        return draw(st.sampled_from(right * 6 + ODD_TEXTS))
    if kind in ("least", "between", "most"):
        return draw(numbers(schema, kind))
    return {"null": None, "True": True, "False": False}.get(kind, kind.strip("'"))


@st.composite
def whole_sections(draw, fields, path):
    """The fields that a section must have, and perhaps one more."""
    required = [name for name, field in fields.items() if "default" not in field]
    further = draw(st.sampled_from([None, None, *(name for name in fields if name not in required)]))
    names = required if further is None else [*required, further]
    return {name: draw(values(fields[name], f"{path}.{name}")) for name in names}


def numbers(schema, part):
    """Of a range: an end, or a number between the ends."""
    option = next(each for each in options(schema) if "minimum" in each)
    least, most = option["minimum"], option["maximum"]
    if part != "between":
        return st.just(least if part == "least" else most)
    if option["type"] == "number":
        return st.floats(least, most, exclude_min=True, exclude_max=True)
    return st.one_of(st.integers(least + 1, min(most - 1, least + 64)), st.integers(least + 1, most - 1))


def _items(schema):
    return next(option["items"] for option in options(schema) if "items" in option)

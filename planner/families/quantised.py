"""Read a checkpoint's quantisation from its files, module by module.

    quantization_config    a key of config.json; engines read it first
    hf_quant_config.json   NVIDIA ModelOpt's file beside config.json; also quantize_config.json (GPTQ) and
                           quant_config.json (AWQ)

A file gives one format for all linear modules, or lists of modules with a format for each list, and a list of modules
that are not quantised. Lists have names, globs and, after `re:`, regular expressions. So of two files that say NVFP4,
one may keep attention and shared experts in BF16: 16 GB more per GPU for GLM-5.1. Each module of a model is matched
with the lists by its name in the checkpoint.

A quantisation that no precision of a spec describes is `Unplanned`: INT8, zero points, experts whose format differs by
layer, and unknown methods.

Source of the keys: files of NVIDIA, Qwen, Moonshot, Z.ai and MiniMax in ai-dynamo/aiconfigurator 095f58a5,
aic-core/src/aiconfigurator_core/model_configs; NVIDIA/Model-Optimizer 0bb92910 examples/deepseek/ptq.py. Lists are
matched as in vllm-project/vllm 00155cde, vllm/model_executor/layers/quantization/modelopt.py (is_layer_excluded): a
glob must match the whole name, any other entry a run of whole parts of the name.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from planner.facts.attention.kind import Matrix
from planner.facts.model import Dense, Layer, Model
from planner.facts.quantisation import (
    FORMATS,
    FP8,
    FP8_MXFP4,
    FP8_NVFP4,
    KNOWN,
    METHODS,
    MXFP4,
    UNQUANTISED,
    W4AFP8,
    Format,
    Formats,
    Quantisation,
)
from planner.facts.terms import KvPrecision, Precision
from planner.families.module_names import HEAD, ModuleNames, Spelling, Unreadable, draft_names, spell_module

# name of a file beside config.json -> its quant_method, if it does not give one
BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
ROLES = ("attention", "output", "ffn", "expert")
# Tools' keys for the list of modules that are not quantised
LEFT_OUT = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")

# quant_algo of ModelOpt -> format; by vLLM's list QUANT_ALGOS and published files
ALGORITHMS: dict[str, Format] = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP4": "mxfp4",
    "MXFP8": "mxfp8",
    "FP8": "fp8_plain",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_plain",
    "FP8_PB_WO": "fp8",
    "FP8_BLOCK_SCALES": "fp8",  # TensorRT-LLM's name for FP8_PB_WO; SGLang reads it too
}
# number of weights that share a scale -> format
INT4: dict[int, Format] = {32: "int4_by_32", 64: "int4_by_64", 128: "int4"}
BY_METHOD = {"w4afp8": W4AFP8, "mxfp4": MXFP4}
CLASS = re.compile("[A-Z][A-Za-z0-9]*")  # a target of compressed-tensors that names a class, such as `Linear`
BLOCKS = ([128, 128], "128x128", None)  # assumed: a file that gives no blocks has these
EIGHT_BITS = ("fp8", "fp8_plain", "mxfp8")
MAX_CHARACTERS = 2**17  # of the patterns in all lists: these compile in 3 s; published files have 11,000
MAX_WAYS = 2**29  # in which all modules may match all lists


@dataclass(frozen=True)
class Form:
    """The contents of a quantisation file: formats for lists of modules.

    `others` are the formats of modules in no list. `precision` is None if it follows from the modules' formats.
    """

    others: Formats
    left_out: ModuleNames
    lists: tuple[tuple[ModuleNames, Format], ...] = ()
    precision: Precision | None = None
    words: str = ""
    method: str = ""  # the file's quant_method

    @property
    def names(self) -> Sequence[ModuleNames]:
        """Return all lists of modules: the list of excluded modules, and the lists of modules with a format."""
        return [self.left_out, *(names for names, _ in self.lists)]


@dataclass(frozen=True)
class Unplanned:
    """A quantisation that no precision of a spec describes; `words` is the name that its makers give it."""

    words: str


def read_form(said: Any, expert_format: Any = None) -> Form | Unplanned | None:
    """Return the contents of a quantisation file; None if nothing is quantised.

    `said` is a quantization_config, from config.json or a file beside it; `expert_format` is config.json's
    `expert_dtype`. Raises Unreadable for values of an unexpected type.
    """
    if not said:
        return None
    if not isinstance(said, Mapping):
        raise Unreadable(f"it is of type {type(said).__name__}, not an object")
    said = _flatten(said)
    method = said.get("quant_method")
    if not isinstance(method, str):
        return Unplanned("of another form")
    method = method.lower()  # assumed: MODELOPT is the same method as modelopt
    if method.startswith("modelopt"):
        found, method = _read_modelopt(said), "modelopt"
    elif method == "compressed-tensors":
        found = _read_groups(said)
    else:
        found = _read_known(said, method, expert_format)
    return replace(found, method=method) if isinstance(found, Form) else found


def read_kv_precision(said: Any) -> KvPrecision | None:
    """Return `fp8` if a ModelOpt file gives FP8 as the precision of KV; None for another precision or another file.

    Engines use the file's precision by default: vLLM in get_kv_cache_quant_algo_string, SGLang in
    configure_kv_cache_dtype.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("quantization", {}), Mapping):
        return None
    said = _flatten(said)
    if not str(said.get("quant_method")).lower().startswith("modelopt"):
        return None
    algorithm, scheme = said.get("kv_cache_quant_algo"), said.get("kv_cache_scheme")
    in_eight_bits = isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    return "fp8" if in_eight_bits or (isinstance(algorithm, str) and algorithm.upper() == "FP8") else None


def apply_form(model: Model, form: Form, said_in: str) -> Model | Unplanned:
    """Return `model` with the formats of `form` in each layer; `Unplanned` if no precision describes the whole.

    `said_in` names the file or key that `form` was read from. Raises Unreadable for an invalid expression, and for
    lists so long or so ambiguous that matching would take for ever.
    """
    _refuse_too_much_work(form, sum(1 for layer in model.layers for each in layer.matrices(1) if each.module))
    kept = partial(_format_modules, form, model)
    layers = tuple(kept(layer, [f"model.layers.{index}"]) for index, layer in enumerate(model.layers))
    draft = model.draft_layer and kept(model.draft_layer, draft_names(model.num_layers))
    found = _precision_of(layers, form)
    if isinstance(found, Unplanned):
        return found
    usual = FORMATS[found.precision]
    if METHODS.get(found.precision, form.method) != form.method:
        found = replace(found, words=form.words, other_method=form.method)
    head = None if form.left_out.cover(HEAD) else next((each for names, each in form.lists if names.cover(HEAD)), None)
    if found is UNQUANTISED and form.lists and not _covers_a_module(form, model):
        entry = next((each for names, _ in form.lists for each in names.entries), "an empty list")
        return Unplanned(f"{form.words}, for {entry[:40]}, which no module is called")
    return replace(
        model,
        quantisation=replace(found, head=head, said_in=said_in, kv=model.quantisation.kv),
        layers=tuple(_drop_usual(layer, usual) for layer in layers),
        draft_layer=draft and _drop_usual(draft, usual),
    )


def _covers_a_module(form: Form, model: Model) -> bool:
    """Return whether some list of modules with a format names a module of the main model, or its output head."""
    modules = (
        spell_module(each.module, [f"model.layers.{index}"], model.model_type)
        for index, layer in enumerate(model.layers)
        for each in layer.matrices(model.hidden_size)
        if each.module
    )
    return any(names.cover(module) for module in chain([HEAD], modules) for names, _ in form.lists)


def _refuse_too_much_work(form: Form, num_modules: int) -> None:
    num_characters = sum(each.num_characters for each in form.names)
    if num_characters > MAX_CHARACTERS:
        raise Unreadable(f"its patterns have {num_characters:,} characters, and at most {MAX_CHARACTERS:,} are read")
    num_ways = num_modules * sum(each.num_ways for each in form.names)
    if num_ways > MAX_WAYS:
        raise Unreadable(
            f"its lists can match the model's {num_modules:,} modules in {num_ways:,} ways, "
            f"and at most {MAX_WAYS:,} are tried"
        )


def _flatten(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a file's keys on one level, with a `quant_method`.

    ModelOpt writes the keys under `quantization`, and may leave out `quant_method`.
    """
    inner = said.get("quantization")
    if inner is not None and not isinstance(inner, Mapping):
        raise Unreadable(f"quantization is of type {type(inner).__name__}, not an object")
    flat = {**said, **inner} if inner is not None else dict(said)
    return {"quant_method": "modelopt", **flat} if "quant_algo" in flat else flat


def _read_known(said: Mapping[str, Any], method: str, expert_format: Any) -> Form | Unplanned:
    """Return the form of a quantisation method whose files all have the same form."""
    known = _read_fp8(said, said.get("expert_dtype", expert_format)) if method == "fp8" else BY_METHOD.get(method)
    if known is None:
        return Unplanned(_name_form(said, method))
    # A file with NVFP4 experts lists what ModelOpt left in FP8.
    left_out = () if known is FP8_NVFP4 else _read_left_out(said)
    return Form(FORMATS[known.precision], ModuleNames(left_out), (), known.precision, known.words)


def _read_fp8(said: Mapping[str, Any], experts: Any) -> Quantisation | None:
    """Return the quantisation of a file with FP8 in blocks and experts in FP8, MXFP4 or NVFP4; None for others."""
    if said.get("weight_block_size") != [128, 128]:
        return None
    if algorithm := said.get("moe_quant_algo"):
        return FP8_NVFP4 if algorithm == "NVFP4" else None
    return FP8_MXFP4 if experts == "fp4" else FP8 if experts is None else None


def _read_modelopt(said: Mapping[str, Any]) -> Form | Unplanned | None:
    """Read a ModelOpt file, with one format for all linear modules or one for each module in `quantized_layers`.

    Return None if the file quantises nothing, and `Unplanned` if it has an unknown format. An NVFP4 file without a list
    of excluded modules is read as if it had the list of NVIDIA's DeepSeek-V3.
    """
    algorithm = said.get("quant_algo")
    if algorithm is None:
        return None
    if not isinstance(algorithm, str):
        raise Unreadable(f"quant_algo is of type {type(algorithm).__name__}, not a name")
    name = algorithm[:40].upper()
    if name == "MIXED_PRECISION":
        return _read_lists(said)
    if (kept_in := ALGORITHMS.get(name)) is None:
        return Unplanned(f"{name} of ModelOpt")
    left_out = ModuleNames(_read_left_out(said))
    if kept_in == "nvfp4" and not any(said.get(key) for key in LEFT_OUT):
        return Form(FORMATS["fp4"], left_out, words=f"{name} of ModelOpt")
    return Form(Formats(kept_in, kept_in, kept_in, kept_in), left_out, words=f"{name} of ModelOpt")


def _read_lists(said: Mapping[str, Any]) -> Form | Unplanned:
    """Read a ModelOpt file of mixed precision, in which only the modules in `quantized_layers` have a format.

    A file without that list is read by its `config_groups`. Returns `Unplanned` for an unknown format.
    """
    named = said.get("quantized_layers")
    if not isinstance(named, Mapping):
        if isinstance(said.get("config_groups"), Mapping):
            return _read_groups(said)
        raise Unreadable("quantized_layers is not an object of module names")
    of_format: dict[Format, list[str]] = {}
    for module, each in named.items():
        algorithm = each.get("quant_algo") if isinstance(each, Mapping) else None
        if not isinstance(algorithm, str):
            raise Unreadable(f"quantized_layers.{module[:80]} has no quant_algo")
        if algorithm.upper() not in ALGORITHMS:
            return Unplanned(f"{algorithm[:40]} of ModelOpt, in MIXED_PRECISION")
        of_format.setdefault(ALGORITHMS[algorithm.upper()], []).append(module)
    lists = tuple((ModuleNames(modules), kept_in) for kept_in, modules in of_format.items())
    return Form(FORMATS["bf16"], ModuleNames(_read_left_out(said)), lists, words="MIXED_PRECISION of ModelOpt")


def _read_groups(said: Mapping[str, Any]) -> Form | Unplanned:
    """Read a compressed-tensors file. Each group gives a format to all linear modules or to those that it names.

    Returns `Unplanned` for an unknown format.
    """
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise Unreadable("config_groups is not an object of groups")
    others, lists, called = FORMATS["bf16"], [], []
    for name, group in groups.items():
        place = f"config_groups.{str(name)[:40]}"
        if not isinstance(group, Mapping) or not isinstance(weights := group.get("weights"), Mapping):
            raise Unreadable(f"{place}.weights is not an object")
        words, kept_in = _read_weights(weights, has_activations=bool(group.get("input_activations")))
        called.append(words)
        if kept_in is None:
            return Unplanned(f"{words} of {said['quant_method']}")
        targets = _read_names(group.get("targets", ["Linear"]), f"{place}.targets")
        if "Linear" in targets:
            others = Formats(kept_in, kept_in, kept_in, kept_in)
        elif classes := [each for each in targets if CLASS.fullmatch(each)]:
            return Unplanned(f"{words} of {said['quant_method']}, for modules of the class {classes[0][:40]}")
        else:
            lists.append((ModuleNames(targets), kept_in))
    words = f"{' and '.join(dict.fromkeys(called))} of {said['quant_method']}"
    return Form(others, ModuleNames(_read_left_out(said)), tuple(lists), words=words)


def _read_weights(weights: Mapping[str, Any], *, has_activations: bool) -> tuple[str, Format | None]:
    """Return (a description of a group's weights, their format or None if the planner does not know it)."""
    bits, kind, size = (weights.get(key) for key in ("num_bits", "type", "group_size"))
    by = f" by {size}" if size else ""
    words = f"{bits}-bit {kind}{by}"[:60]
    if (bits, kind) == (4, "int") and weights.get("symmetric", True) is True and not has_activations:
        return f"INT4{by}", INT4.get(size) if isinstance(size, int) else None
    if (bits, kind) == (4, "float"):
        if size == 16:
            return "NVFP4", "nvfp4"
        return ("MXFP4", "mxfp4") if size == 32 else (words, None)
    if (bits, kind) == (8, "float") and not size:
        if weights.get("strategy") != "block":
            return "FP8", "fp8_plain"
        blocks = weights.get("block_structure")
        return ("FP8", "fp8") if blocks in BLOCKS else (f"FP8 in blocks of {blocks}"[:60], None)
    return words, None


def _read_left_out(said: Mapping[str, Any]) -> Sequence[str]:
    """Return the modules that a file excludes from quantisation, under whichever key its tool writes them."""
    return [name for key in LEFT_OUT for name in _read_names(said.get(key) or [], key)]


def _read_names(names: Any, place: str) -> list[str]:
    if not isinstance(names, list):
        raise Unreadable(f"{place} is of type {type(names).__name__}, not a list of names")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise Unreadable(f"{place}[{index}] is of type {type(name).__name__}, not a name")
    return names


def _name_form(said: Mapping[str, Any], method: str) -> str:
    """Return a name for a quantisation that is not planned, from its file's own words."""
    bits, size = said.get("bits", said.get("w_bit")), said.get("group_size", said.get("q_group_size"))
    if algorithm := said.get("moe_quant_algo"):
        return f"fp8 with experts in {str(algorithm)[:40]}"
    if method == "fp8" and not isinstance(said.get("expert_dtype"), str):
        return "fp8 without blocks of 128 x 128"
    counts = [f"{bits} bits"] if isinstance(bits, int) else []
    counts += [f"by {size}"] if isinstance(size, int) else []
    return ", ".join([method[:40], " ".join(counts)] if counts else [method[:40]])


def _format_modules(form: Form, model: Model, layer: Layer, places: Sequence[str]) -> Layer:
    """Return `layer` with each module's format. A file may list the layer's modules under any of `places`."""
    modules = {each.module: each for each in layer.matrices(model.hidden_size) if each.module}
    formats = {
        name: _format_of(each, form, spell_module(name, places, model.model_type)) for name, each in modules.items()
    }
    by_role: dict[str, Format] = {}
    for role in ROLES:
        weights: Counter[Format] = Counter()
        for name, each in modules.items():
            if each.role == role:
                weights[formats[name]] += each.num_weights
        by_role[role] = weights.most_common(1)[0][0] if weights else "bf16"
    unlike = ((name, kept_in) for name, kept_in in formats.items() if kept_in != by_role[modules[name].role])
    return replace(layer, kept_in=Formats(**by_role, modules=tuple(unlike)))


def _format_of(matrix: Matrix, form: Form, module: Spelling) -> Format:
    if form.left_out.cover(module):
        return "bf16"
    listed = (kept_in for names, kept_in in form.lists if names.cover(module))
    return next(listed, form.others.of(matrix.role))


def _precision_of(layers: Sequence[Layer], form: Form) -> Quantisation | Unplanned:
    """Return the precision that describes the layers' formats of routed experts and other modules."""
    if form.precision is not None:
        return Quantisation(form.precision, form.words)
    kept = [layer.kept_in for layer in layers if layer.kept_in]
    experts = {layer.kept_in.expert for layer in layers if layer.kept_in and not isinstance(layer.ffn, Dense)}
    others = {each for formats in kept for each in (formats.attention, formats.output, formats.ffn)}
    quantised_experts = experts - {"bf16"}
    if not quantised_experts:
        return UNQUANTISED if others == {"bf16"} else Unplanned(f"{form.words}, without routed experts")
    if len(quantised_experts) > 1:
        return Unplanned(f"{form.words}, with routed experts in {' and '.join(sorted(quantised_experts))}")
    expert = quantised_experts.pop()
    precision = _choose_precision(expert, has_eight_bits=bool(others & {*EIGHT_BITS}))
    if precision is None:
        return Unplanned(form.words)
    is_usual = expert == FORMATS[precision].expert
    known = next(each for each in KNOWN if each.precision == precision)
    return known if is_usual else replace(known, words=form.words)


def _choose_precision(expert: Format, *, has_eight_bits: bool) -> Precision | None:
    """Return the `Precision` (such as `fp8_fp4`) of checkpoints whose routed experts are in the format `expert`.

    Returns None if no precision describes them. `has_eight_bits` tells whether other modules are in an 8-bit format.
    """
    if expert == "nvfp4":
        return "fp8_fp4" if has_eight_bits else "fp4"
    if expert == "mxfp4":
        return "fp8_mxfp4" if has_eight_bits else "mxfp4"
    if expert in EIGHT_BITS:
        return "fp8"
    return "w4a16" if expert in INT4.values() and not has_eight_bits else None


def _drop_usual(layer: Layer, usual: Formats) -> Layer:
    """Return `layer` without formats of its own if they equal `usual`, the formats that its precision implies."""
    assert layer.kept_in is not None
    present = {each.role for each in layer.matrices(hidden_size=1) if each.module}
    is_usual = not layer.kept_in.modules and all(
        getattr(layer.kept_in, role) == getattr(usual, role) for role in present
    )
    return replace(layer, kept_in=None) if is_usual else layer

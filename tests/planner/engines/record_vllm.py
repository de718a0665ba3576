"""Record vLLM's command line and models from its wheel: python -m tests.planner.engines.record_vllm vllm-0.33.0-....whl

Run by hand when vLLM's version changes. It reads sources and runs none of them: each option with the type that its
configuration class declares, names of literals written out. What a parser would say otherwise (nargs, actions) is in
the declaration too: `bool` is a flag, `list[...]` takes several values, a class takes JSON.

Of models: the module of each architecture that `planner/facts/engine_models.py` names, and whether its sources have a
`MixtureOfExperts`, which is what EPLB asks for. A multimodal model is asked by its text model.

Of quantised experts: what each class answers to `supports_eplb`, which EPLB asks next.
"""

import ast
import json
import sys
import zipfile
from pathlib import Path

from planner.facts.engine_models import ENGINE_MODELS

TABLE = Path(__file__).parent / "vllm-options.json"
WRITTEN_AS_JSON = ("EPLBConfig", "KVTransferConfig")
REGISTRY = "vllm/model_executor/models/registry.py"
TEXT_MODELS = {"KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM"}
LAYERS = "vllm/model_executor/layers/"
FOLDERS = ("vllm/config/", "vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py")


def main() -> None:
    """Write the table."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(FOLDERS) and name.endswith(".py")]
        trees = [ast.parse(wheel.read(name)) for name in names]
        models, moved = dict(_models(wheel)), dict(sorted(_moved(wheel)))
    aliases = {key: value for tree in trees for key, value in _aliases(tree)}
    fields = {key: _written_out(value, aliases) for tree in trees for key, value in _fields(tree)}
    options = {name: fields[name[2:].replace("-", "_")] for tree in trees for name in _options(tree, fields)}
    options |= {_option(name): kind for tree in trees for name, kind in _frontend(tree, aliases)}
    version = Path(sys.argv[1]).name.split("-")[1]
    classes = {name: dict(found) for tree in trees for name, found in _classes(tree) if name in WRITTEN_AS_JSON}
    table = {"version": version, "options": dict(sorted(options.items())), "classes": classes, "models": models}
    table["supports_eplb"] = moved
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def _models(wheel):
    """Architecture -> its module, and whether EPLB moves its experts."""
    registered = {
        key.value: ast.literal_eval(value)
        for node in ast.walk(ast.parse(wheel.read(REGISTRY)))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
    }
    for architecture in sorted({each.architecture for each in ENGINE_MODELS["vllm"]["0.33.0"].values()}):
        module, _ = registered[architecture]
        asked, _ = registered[TEXT_MODELS.get(architecture, architecture)]
        yield architecture, {"module": module, "moves_experts": b"MixtureOfExperts" in _sources(wheel, asked)}


def _sources(wheel, module):
    """A module's text, or a package's for NVIDIA's GPUs."""
    folder = f"{module.replace('.', '/')}/" if "." in module else f"vllm/model_executor/models/{module}.py"
    names = [name for name in wheel.namelist() if name.startswith(folder) and "/amd/" not in name]
    return b"".join(wheel.read(name) for name in names if name.endswith(".py"))


def _moved(wheel):
    """Class of experts -> what it returns, of those that say anything of EPLB."""
    for name in wheel.namelist():
        if name.startswith(LAYERS) and name.endswith(".py") and b"def supports_eplb" in (text := wheel.read(name)):
            for node in ast.parse(text).body:
                own = [each for each in getattr(node, "body", ()) if getattr(each, "name", "") == "supports_eplb"]
                yield from ((node.name, ast.unparse(each.body[-1])) for each in own)


def _aliases(tree):
    """Names of literals."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value)
            if text.startswith("Literal["):
                yield node.targets[0].id, text


def _fields(tree):
    """The annotated fields of all classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)


def _classes(tree):
    """The fields of each class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, _fields(node)


def _options(tree, fields):
    """Options that are added under the name of a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for word in node.args:
                text = word.value if isinstance(word, ast.Constant) else ""
                if isinstance(text, str) and text.startswith("--") and text[2:].replace("-", "_") in fields:
                    yield text


def _frontend(tree, aliases):
    """Fields of the server's own arguments, which become options by their names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            yield from ((name, _written_out(kind, aliases)) for name, kind in _fields(node))


def _option(name):
    return "--" + name.replace("_", "-")


def _written_out(kind, aliases):
    for name, literal in aliases.items():
        kind = literal if kind == name else kind
    return kind


if __name__ == "__main__":
    main()

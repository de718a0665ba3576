"""Every call of a kernel package fits the signature in the wheel that the extra `gpu` pins.

The wheels are unpacked and read, never imported: two of them need a driver. Calls into their C++ parts (`Config`,
`EventHandle`) have no signature there and are not checked. What the calls compute, nobody says here.

Needs the package index once; without it the tests are skipped.
"""

import ast
import inspect
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
OURS = (ROOT / "runtime" / "kernels" / "gpu" / "ops.py", ROOT / "runtime" / "expert_parallel" / "deep_ep.py")
IN_CPP = {"get_nvl_buffer_size_hint", "get_rdma_buffer_size_hint", "current_stream_wait"}
# what stands before the dot in our code -> wheel, and the class there whose method it is
PACKAGES = {
    "deep_gemm": ("sgl_deep_gemm", None),
    "flash_mla": ("sgl_flash_mla", None),
    "_buffer": ("sgl_deep_ep", "Buffer"),
    "Buffer": ("sgl_deep_ep", "Buffer"),
    "buffer": ("sgl_deep_ep", "Buffer"),
}
FILES = {
    "sgl_deep_gemm": "deep_gemm/__init__.py",
    "sgl_flash_mla": "flash_mla/flash_mla_interface.py",
    "sgl_deep_ep": "deep_ep/buffers/legacy.py",
}
pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def sources(request):
    """Return wheel -> its parsed file with the signatures, downloaded once and cached by pytest."""
    folder = request.config.cache.mkdir("kernel-wheels")
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    found = {name: sorted(folder.glob(f"{name}-*.whl")) for name in FILES}
    if not all(found.values()):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        done = subprocess.run([*command, *pinned], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"the wheels cannot be had: {done.stderr.strip().splitlines()[-1]}")
        found = {name: sorted(folder.glob(f"{name}-*.whl")) for name in FILES}
    parsed = {}
    for name, file in FILES.items():
        (wheel,) = found[name]
        version = next(each for each in pinned if each.startswith(name.replace("_", "-"))).partition("==")[2]
        assert wheel.name.startswith(f"{name}-{version}-"), "the kept wheel is of another version: pytest --cache-clear"
        with zipfile.ZipFile(wheel) as archive:
            parsed[name] = ast.parse(archive.read(file))
    return parsed


def find_signature(tree, class_name, name):
    """Return the signature of a function or method, also under `try:` or under another name."""
    body = list(ast.walk(tree))
    if class_name is not None:
        (owner,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
        body = owner.body
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _signature(node, is_method=class_name is not None)
        if isinstance(node, ast.Assign) and [getattr(each, "id", None) for each in node.targets] == [name]:
            if isinstance(node.value, ast.Name):
                return find_signature(tree, class_name, node.value.id)
            return None  # it is C++'s
    raise AssertionError(f"the package has no {name}")


def _signature(node, is_method):
    positional = [*node.args.posonlyargs, *node.args.args]
    is_static = any(getattr(each, "id", None) == "staticmethod" for each in node.decorator_list)
    without_default = len(positional) - len(node.args.defaults)
    parameters = [
        inspect.Parameter(
            each.arg,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if number < without_default else None,
        )
        for number, each in enumerate(positional)
    ]
    if node.args.vararg:
        parameters.append(inspect.Parameter(node.args.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    if node.args.kwarg:
        parameters.append(inspect.Parameter(node.args.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters[1:] if is_method and not is_static else parameters)


def our_calls():
    """Return (package, class, function, number of positional arguments, other arguments' names) of our calls."""
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function, owner = node.func, None
            if isinstance(function, ast.Attribute):
                owner = getattr(function.value, "attr", getattr(function.value, "id", None))
            name = getattr(function, "attr", getattr(function, "id", None))
            if name in ("Buffer", "buffer"):
                owner, name = "Buffer", "__init__"
            if owner in PACKAGES and name not in IN_CPP:
                yield (*PACKAGES[owner], name, len(node.args), tuple(each.arg for each in node.keywords))


CALLS = sorted(set(our_calls()), key=str)


def test_every_function_that_we_use_is_among_the_calls():
    """The search finds every function that we use."""
    assert {name for _, _, name, _, _ in CALLS} == {
        *("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_fp4_gemm_nt_masked"),
        *("get_mk_alignment_for_contiguous_layout", "get_mla_metadata", "flash_mla_with_kvcache"),
        *("__init__", "capture", "get_dispatch_layout", "dispatch", "combine", "low_latency_dispatch"),
        *("low_latency_combine", "get_dispatch_config", "get_combine_config", "get_low_latency_rdma_size_hint"),
    }


@pytest.mark.parametrize(("package", "class_name", "name", "positional", "keywords"), CALLS)
def test_a_call_fits_its_signature(sources, package, class_name, name, positional, keywords):
    """A call fits its signature by number and names, and leaves out nothing required."""
    signature = find_signature(sources[package], class_name, name)
    if signature is not None:
        signature.bind(*[None] * positional, **dict.fromkeys(keywords))


def test_a_call_that_does_not_fit_is_found(sources):
    """A name of another version, or a missing argument, is noticed."""
    masked = find_signature(sources["sgl_deep_gemm"], None, "m_grouped_fp8_fp4_gemm_nt_masked")
    with pytest.raises(TypeError, match="masked_layout"):
        masked.bind(1, 2, 3, 4, 5, masked_layout=6)
    with pytest.raises(TypeError, match="expected_m"):
        masked.bind(1, 2, 3, 4)
    with pytest.raises(AssertionError, match="no fp8_gemm_ntt"):
        find_signature(sources["sgl_deep_gemm"], None, "fp8_gemm_ntt")


def test_dense_decoding_is_among_flash_mlas_older_kernels(sources):
    """Our call asks for FlashMLA's older kernels, without which the wheel refuses dense attention."""
    (call,) = (each for each in CALLS if each[2] == "flash_mla_with_kvcache")

    assert "use_legacy" in call[4]
    assert "use_legacy" in find_signature(sources["sgl_flash_mla"], None, "flash_mla_with_kvcache").parameters

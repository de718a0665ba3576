"""The specs that ship: each plans, with the layout that its comments promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planner.compiler import compile_plan, run_passes
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.problems.errors import InfeasibleError
from planner.report.text import plan_text
from planner.rules.check import check_spec
from tests.templates.gpu_plans import validate

pytestmark = pytest.mark.slow

SPECS = Path(__file__).parents[2] / "stacks" / "specs"

# spec -> phase -> (nodes of a unit, EP size, routed slots a GPU)
LAYOUTS = {
    "deepseek-h800.yaml": {"prefill": (4, 32, 9), "decode": (18, 144, 2)},
    "h800-one-pair.yaml": {"prefill": (4, 32, 9), "decode": (18, 144, 2)},
    "h200-single-node.yaml": {"mixed": (1, 8, 32)},
    "mi300x-single-node.yaml": {"mixed": (1, 8, 33)},
    "h20.yaml": {"prefill": (2, 16, 17), "decode": (4, 32, 9)},
}


@pytest.mark.parametrize(("name", "expected"), LAYOUTS.items())
def test_it_plans(name, expected):
    """Layout by layout, with room for requests of full length."""
    plan = compile_plan(check_spec(SPECS / name))

    assert {
        phase: (each.nodes_per_unit, each.ep_size, each.slots_per_gpu) for phase, each in plan.phases.items()
    } == expected
    assert all(memory.full_requests >= 1 for memory in plan.memory.values())


def test_the_published_day_is_planned_hour_by_hour():
    """278 nodes at the peak as 29 + 9 units, 226.75 on average, and every smaller state uses nodes of the larger."""
    plan = compile_plan(check_spec(SPECS / "deepseek-h800.yaml"))
    schedule = plan.as_json()["schedule"]
    steps = {step["at"]: step for step in schedule["steps"]}

    assert (schedule["peak_nodes"], schedule["mean_nodes"]) == (278, 226.75)
    assert schedule["released_node_hours_per_day"] == (278 - 226.75) * 24
    assert (steps["12:00"]["prefill_units"], steps["12:00"]["decode_units"]) == (29, 9)
    assert set(steps["03:30"]["units"]) < set(steps["00:00"]["units"]) < set(steps["12:00"]["units"])
    assert [step["nodes"] for step in schedule["steps"]] == [278, 218, 188, 158, 128, 98, 68, 98, 128, 188, 218, 278]


def test_the_published_system_is_placed_as_well_as_it_can_be():
    """Every state in as few racks as its nodes need, and no rack with nodes of two decode units."""
    placement = compile_plan(check_spec(SPECS / "deepseek-h800.yaml")).as_json()["placement"]
    counts = {each["name"]: (each["value"], each["bound"], each["proven"]) for each in placement["objectives"]}

    assert counts == {"racks": (515, 515, True), "rack_loss": (1, 1, True)}


@pytest.mark.parametrize("name", sorted(LAYOUTS.keys() - {"mi300x-single-node.yaml"}))
def test_it_renders_as_it_stands(name):
    """Objects that Kubernetes knows; launch files say that ranks compute on GPUs, and where the weights are."""
    plan = compile_plan(check_spec(SPECS / name))
    files = render_files(plan)
    documents = [plan.unit_document(unit) for unit in plan.units]

    validate(
        [yaml.load(text, Loader=yaml.CSafeLoader) for file, text in files.items() if file != KUSTOMIZATION],
        units=[f"deepseek-r1-{phase}-0" for phase in LAYOUTS[name]],
    )
    assert sum(file.startswith("leaderworkerset-") for file in files) == len(plan.units)
    assert [file for file, each in containers_of(files) if not requests_of(each) >= {"cpu", "memory"}] == []
    assert [file for file, each in containers_of(files) if not has_time_to_start(each)] == []
    assert {(each["device"], each["checkpoint"]["uri"]) for each in documents} == {("cuda", "/models/deepseek-r1")}


@pytest.mark.parametrize("name", ["demo.yaml", "demo-day.yaml"])
def test_no_pod_of_the_demo_ends_while_it_starts(name):
    """Its units have no liveness probe; the gateway and the controller have one, and time to start before it.

    They are asked often, since nobody asks whether they are ready before their start is over.
    """
    files = render_files(compile_plan(check_spec(SPECS / name)))
    probed = {file for file, each in containers_of(files) if "livenessProbe" in each}

    assert probed == {file for file in files if file.startswith("deployment-")}
    assert all(has_time_to_start(each) for _, each in containers_of(files) if "livenessProbe" in each)
    assert {each["startupProbe"]["periodSeconds"] for _, each in containers_of(files) if "startupProbe" in each} == {2}


def containers_of(files):
    """Yield each container that runs on, with its file."""
    for name, text in files.items():
        if name.startswith(("leaderworkerset-", "deployment-")):
            spec = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]
            template = spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["workerTemplate"]
            yield from ((name, each) for each in template["spec"]["containers"])


def requests_of(container):
    """Return what a container requests. A node that runs out of memory first ends pods without requests."""
    return container.get("resources", {}).get("requests", {}).keys()


def has_time_to_start(container):
    """Return whether liveness waits for a startup probe, which allows ten minutes or more."""
    started = container["startupProbe"]
    is_same = started["httpGet"] == container["livenessProbe"]["httpGet"]
    return is_same and started["periodSeconds"] * started["failureThreshold"] >= 600


def test_amds_gpus_plan_and_do_not_render():
    """S740: our runtime has no kernels for their FP8."""
    plan = compile_plan(check_spec(SPECS / "mi300x-single-node.yaml"))

    assert [problem.rule[:4] for problem in plan.refusals] == ["S740"]


@pytest.mark.slow
def test_a_plan_does_not_depend_on_the_processor():
    """Without numpy's vector instructions, and with the dictionaries of another hash seed: the same digest."""
    path = str(SPECS / "h800-one-pair.yaml")
    simple = os.environ | {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX", "PYTHONHASHSEED": "7"}
    code = (
        "import sys; from pathlib import Path; from planner.rules.check import check_spec\n"
        "from planner.compiler import compile_plan; print(compile_plan(check_spec(Path(sys.argv[1]))).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, path], env=env, capture_output=True, check=True
        ).stdout
        for env in (dict(os.environ), simple)
    }

    assert len(digests) == 1


def test_assumed_figures_are_told(spec_file):
    """What a GB200 is sold as was not read anywhere: the plan says so, and what is said of it."""
    text = (SPECS / "h20.yaml").read_text()
    for here, there in (("gpu: h20", "gpu: gb200"), ("nodes: 8 ", "nodes: 16 "), ("per_node: 8", "per_node: 4")):
        text = text.replace(here, there)
    plan = run_passes(check_spec(spec_file(text, "gb200.yaml")))

    assert plan.plan.as_json()["assumed"].keys() == {"cluster.gpu.nominal_gb", "decode.cuda_graphs"}
    assert "cluster.gpu.nominal_gb; cuda graphs of decode" in " ".join(plan_text(plan.plan).split())
    full = " ".join(plan_text(plan.plan, full=True).split())
    assert "cluster.gpu.nominal_gb 186; what is said of it is 186 to 192 GB" in full


def test_nominal_memory_of_a_gpu_is_only_shown():
    """Plans count the memory that an H800's driver reports; the 80 GB of its name are shown with both sources."""
    plan = run_passes(check_spec(SPECS / "h800-one-pair.yaml"))
    document = plan.plan.as_json()

    assert "GPU nominal GB 80 usable 84.9 GB" in " ".join(plan_text(plan.plan, full=True).split())
    assert document["memory"]["decode"]["gpu_bytes"] == document["gpu"]["usable_bytes"] == 84_943_110_144
    assert document["sources"].keys() == {
        "model",
        *(f"cluster.gpu.{figure}" for figure in document["gpu"]),
        *("prefill.context", "decode.context", "decode.cuda_graphs"),
    }


def test_no_spec_ships_untested():
    """Every file has its layout above, or a test of its own: the demo and its day run in tests/stacks."""
    assert {path.name for path in SPECS.glob("*.yaml")} == LAYOUTS.keys() | {"demo.yaml", "demo-day.yaml"}


def test_two_phases_do_not_fit_one_node(spec_file):
    """S701: prefill EP8 and decode EP8 have their nodes to themselves; a unit that does both has it alone."""
    text = (SPECS / "h200-single-node.yaml").read_text()
    mixed = text[text.index("mixed:") : text.index("expert_load:")]
    both = mixed.replace("mixed:", "prefill:") + mixed.replace("mixed:", "decode:")
    with pytest.raises(InfeasibleError) as error:
        compile_plan(check_spec(spec_file(text.replace(mixed, both), "both.yaml")))

    assert error.value.findings[0].message == (
        "cluster.nodes (1) must be at least 2 (units x nodes of a unit: prefill 1 x 1 + decode 1 x 1); "
        "units do not share nodes; "
        "nearest: cluster.nodes 2, or mixed {ep_size: 8, redundant_experts: 0, precision: fp8, max_requests: 64, "
        "max_request_tokens: 32768, max_batch_tokens: 4096} instead of prefill and decode"
    )

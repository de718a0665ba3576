"""What a plan has more with a controller, as Kubernetes will read it.

`tests/cluster` holds the day against the schema of its own definition.
"""

from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

import stacks
from planner.compiler import compile_plan
from planner.facts.names import MERGE_ANNOTATIONS, UNIT_LABEL, UNPRUNED, controller_nodes_role
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import change_spec, check_spec
from stacks.controller.clock import Clock
from stacks.controller.observe import read_situation
from tests.stacks.controller.day_spec import day_plan
from tests.stacks.deployments import DEMO_SPEC
from tests.templates.test_schemas import VERSION

NAME = "demo-day-controller"
NODES_ROLE = f"tidemill-tidemill.{NAME}"
DEFINITION = Path(stacks.__file__).parent / "controller" / "definition.yaml"


def rendered(folder, **kubernetes):
    """Kind and name -> object."""
    return rendered_of(day_plan(folder, **kubernetes))


def rendered_of(plan):
    files = render_files(plan)
    found = [yaml.safe_load(text) for name, text in files.items() if name != KUSTOMIZATION]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Those of the demo's day."""
    return rendered(tmp_path_factory.mktemp("day"))


def test_a_controller_is_six_objects_more(objects, tmp_path):
    """All of them in the plan's namespace, and the rest is as it would be without."""
    without = rendered(tmp_path, controller=None)

    assert objects.keys() - without.keys() == {
        ("TidemillDeployment", "demo-day"),
        *((kind, NAME) for kind in ("Deployment", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy")),
    }
    assert not without.keys() - objects.keys()


def test_every_object_is_of_its_kind(objects):
    """No field that Kubernetes does not know, none of another type, none missing."""
    for kind in ("Deployment", "ServiceAccount", "Role", "RoleBinding"):
        kubernetes_validate.validate(objects[kind, NAME], VERSION, strict=True)


def test_the_pod_holds_as_little_as_it_can(objects, tmp_path):
    """An account of its own, no user's volume, no root, nothing to write to but a scratch folder."""
    volumes = [{"host_path": "/mnt/models", "mount_path": "/models"}]
    with_volumes = rendered(tmp_path, volumes=volumes)
    pod = with_volumes["Deployment", NAME]["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["serviceAccountName"] == NAME
    assert pod["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert container["args"] == ["tidemill/demo-day", "--address=$(POD_IP)"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]


def test_the_account_scales_the_plans_own_units_and_no_other(objects):
    """Rights on a scale name each unit."""
    (scales,) = (rule for rule in objects["Role", NAME]["rules"] if rule["resources"] == ["leaderworkersets/scale"])

    assert scales["verbs"] == ["patch"]
    assert scales["resourceNames"] == [name for kind, name in objects if kind == "LeaderWorkerSet"]


def test_a_new_template_waits_for_the_units_turn(objects, tmp_path):
    """A constant in the group's spec, which is in no pod: a plan that gets a controller restarts nobody by it."""
    without = rendered(tmp_path, controller=None)
    for key in (key for key in objects if key[0] == "LeaderWorkerSet"):
        assert objects[key]["spec"].pop("rolloutStrategy") == {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"partition": 1},
        }
        assert objects[key]["spec"] == without[key]["spec"]


@pytest.mark.parametrize(("controller", "turns"), [({}, "now"), ({"turns": "with_room"}, "with_room")])
def test_the_controller_knows_when_units_change_and_how_long_they_may_take(controller, turns, tmp_path):
    """And each unit's nodes, since a unit may have to wait for another one to leave them.

    A start takes 10 s for pods, 1 s to join, 5 s for maps, 10 s to be ready, and milliseconds for the demo's weights.
    """
    day = rendered(tmp_path, controller=controller, ready_timeout="20min")["TidemillDeployment", "demo-day"]["spec"]

    assert (day["turns"], day["readySeconds"]) == (turns, 1200)
    assert (day["startSeconds"], day["turnSeconds"]) == (10 + 1 + 5 + 10 + 1, day["startSeconds"] + 180)
    assert [each["nodes"] for each in day["units"]] == [[f"node-{index}"] for index in range(4)]


def test_the_day_is_the_plans(objects):
    """The units in the plan's order, and the states that the schedule has."""
    day = objects["TidemillDeployment", "demo-day"]["spec"]

    assert [(each["name"], each["phase"], each["pods"]) for each in day["units"]] == [
        (f"demo-day-{phase}-{index}", phase, 1) for phase in ("prefill", "decode") for index in (0, 1)
    ]
    assert day["steps"][1] == {"at": "11:00", "units": {"prefill": 1, "decode": 1}}
    assert (day["timezone"], day["warmUpSeconds"], day["drainSeconds"], day["pace"]) == ("UTC", 1800, 900, 1)
    assert "hold" not in day
    assert "force" not in day


def test_other_days_are_the_plans_too(tmp_path):
    """The object is what the definition's schema admits, and the controller reads from it what the plan has."""
    sundays = {"days": ["sunday"], "windows": [{"at": "00:00", "prefill_units": 1, "decode_units": 1}]}
    plan = day_plan(tmp_path, schedule={"other_days": [sundays]})
    spec = rendered_of(plan)["TidemillDeployment", "demo-day"]["spec"]
    schema = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate(spec, schema["properties"]["spec"])
    timetable = read_situation(spec, [], Clock(0, 1), 0).timetable

    assert timetable.other_days[0].days == ("sunday",)
    assert [step.units for step in timetable.other_days[0].steps] == [
        step.units for step in plan.timetable.other_days[0].steps
    ]


@pytest.mark.parametrize(("drain", "pace", "drain_s"), [(None, 1, 900), (None, 144, 30), ("3min", 1, 180)])
def test_answers_get_the_time_that_the_day_pays_for(drain, pace, drain_s, tmp_path):
    """Pods end after schedule.drain, of which a rehearsal has less, unless kubernetes.drain says otherwise."""
    unit = rendered(tmp_path, drain=drain, controller={"pace": pace})["LeaderWorkerSet", "demo-day-decode-0"]
    pod = unit["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]

    assert f"--drain={drain_s}" in pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] == drain_s + 10


def test_the_controller_may_have_an_image_and_a_size_of_its_own(tmp_path):
    """As other engines need, whose images have no Tidemill."""
    controller, image = {"resources": {"cpus": 0.1, "memory": "256MiB"}}, "registry.example.com/tidemill:1"
    objects = rendered(tmp_path, controller=controller, tidemill_image=image)
    (container,) = objects["Deployment", NAME]["spec"]["template"]["spec"]["containers"]

    assert container["image"] == image
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}


def test_the_controller_runs_in_the_gateways_image(tmp_path):
    """In the same image, unless it has one of its own, and with its priority."""
    objects = rendered(tmp_path, gateway={"image": "tidemill:1"}, priority_class="inference")
    pods = [objects["Deployment", f"demo-day-{of}"]["spec"]["template"]["spec"] for of in ("gateway", "controller")]

    for pod in pods:
        assert pod["containers"][0]["image"] == "tidemill:1"
        assert pod["priorityClassName"] == "inference"


def test_who_heals_may_write_all_nodes_of_the_plan(tmp_path):
    """Those of units and the spares; the day has both, and what makes a node faulty."""
    cluster = {"nodes": 5, "spares": ["node-4"]}
    plan = day_plan(tmp_path, cluster=cluster, controller={"heal": {"conditions": ["GPUMissing"]}})
    healing = rendered_of(plan)
    day = healing["TidemillDeployment", "demo-day"]["spec"]

    assert healing["ClusterRole", NODES_ROLE]["rules"][1] == {
        "apiGroups": [""],
        "resources": ["nodes"],
        "verbs": ["get", "patch"],
        "resourceNames": [f"node-{index}" for index in range(5)],
    }
    rules = healing["Role", NAME]["rules"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]} in rules
    assert [
        each["resourceNames"] for each in rules if (each["resources"], each["verbs"]) == (["pods"], ["delete"])
    ] == [[f"demo-day-{phase}-{index}-0" for phase in ("prefill", "decode") for index in (0, 1)]]
    assert day["heal"] == {"conditions": ["GPUMissing"], "labels": []}
    assert "lendNodes" not in day
    assert day["units"][3] == {
        "name": "demo-day-decode-1",
        "phase": "decode",
        "pods": 1,
        "nodes": ["node-3"],
        "spares": ["node-4"],
    }


def test_a_controller_may_ask_the_gateways_for_their_metrics(tmp_path):
    """And for nothing else. With demand, the day has what a unit of each phase takes, by the launch files."""
    asking = rendered(tmp_path, controller={"demand": {"after": "30s"}, "stragglers_last": True})
    without = rendered(tmp_path)

    assert asking["NetworkPolicy", NAME] == without["NetworkPolicy", NAME]
    assert asking["NetworkPolicy", NAME]["spec"]["egress"][1:] == [
        {
            "to": [{"podSelector": {"matchLabels": asking["Service", "demo-day-registry"]["spec"]["selector"]}}],
            "ports": [{"protocol": "TCP", "port": 9400}],
        }
    ]
    assert asking["Role", NAME] == without["Role", NAME]
    day = asking["TidemillDeployment", "demo-day"]["spec"]
    for each in (asking, without):
        assert each["TidemillDeployment", "demo-day"]["spec"]["metrics"] == (
            "http://demo-day-registry.tidemill:9400/metrics"
        )
    assert day["stragglersLast"] == {}
    assert day["demand"] == {
        "used": 0.9,
        "backlog": 1.5,
        "afterSeconds": 30,
        "staySeconds": 900,
        "rooms": {"prefill": {"promptTokens": 512}, "decode": {"requests": 8, "kvTokens": 16384}},
    }


def test_who_changes_maps_may_write_the_units_next_epochs(tmp_path):
    """It may write one ConfigMap a unit, which the unit's pods mount if it is there, and may ask ranks for metrics."""
    live = {"every": "10min", "min_gain": 0.05, "max_bytes": "1GB"}
    pairs = {"cluster": {"nodes": 8}, "phases": {"ep_size": 2}}
    changing = rendered(tmp_path, loads={"alpha": 1.01, "live": live}, **pairs)
    units = [name for kind, name in changing if kind == "LeaderWorkerSet"]
    rights = [rule for rule in changing["Role", NAME]["rules"] if rule["resources"] == ["configmaps"]]
    (ranks,) = changing["NetworkPolicy", NAME]["spec"]["egress"][2:]

    assert rights[1:] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}
        | {"resourceNames": [f"{unit}-epoch" for unit in units]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]
    assert ranks["ports"] == [{"protocol": "TCP", "port": 9400}]
    for unit in units:
        group = changing["LeaderWorkerSet", unit]["spec"]["leaderWorkerTemplate"]
        pod = group["workerTemplate"]["spec"]
        (launch,) = (each["projected"]["sources"] for each in pod["volumes"] if each["name"] == "launch")
        assert {"configMap": {"name": f"{unit}-epoch", "optional": True}} in launch
        assert "--next-epoch=/etc/tidemill/next-epoch.json" in pod["containers"][0]["args"]
    written = changing["TidemillDeployment", "demo-day"]["spec"]["liveMaps"]
    assert (written["everySeconds"], written["minGain"], written["maxBytes"]) == (600, 0.05, 10**9)
    assert written["phases"].keys() == {"prefill", "decode"}


def test_no_two_deployments_share_the_role_for_nodes():
    """The one that is removed would take the other's rights away. Namespaces and names may have hyphens."""
    deployments = (("a-b", "c"), ("a", "b-c"), ("a", "b.c"))

    assert len({controller_nodes_role(*each) for each in deployments}) == len(deployments)


def test_who_lends_nodes_may_write_those_of_units_that_are_off_at_some_time(tmp_path):
    """And no other; the units' pods stand the taint by which their nodes are left to them."""
    lending = rendered(tmp_path, controller={"lend_nodes": True})
    role = lending["ClusterRole", NODES_ROLE]
    binding = lending["ClusterRoleBinding", NODES_ROLE]
    unit = lending["LeaderWorkerSet", "demo-day-decode-1"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]

    assert role["rules"][1]["resourceNames"] == ["node-1", "node-3"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "tidemill"}]
    assert {"key": "tidemill.dev/reclaimed", "operator": "Exists", "effect": "NoSchedule"} in unit["tolerations"]
    assert lending["TidemillDeployment", "demo-day"]["spec"]["lendNodes"] == {"noticeSeconds": 300}
    for document in (role, binding):
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_a_gitops_tool_prunes_nothing_that_the_controller_drains(objects):
    """A unit that left Git serves until it is drained, so it needs its objects; old pods may need old launch files."""
    kept = {key for key, each in objects.items() if UNPRUNED.items() <= annotations(each).items()}

    of_units = {key for key, each in objects.items() if UNIT_LABEL in each["metadata"]["labels"]}
    launch_files = {key for key in objects if key[0] == "ConfigMap"}
    assert kept == of_units | launch_files | {("Namespace", "tidemill")}


def test_without_a_controller_the_tool_prunes_what_left_git(tmp_path):
    """Nobody else deletes a unit or a launch file; but pruning the namespace would delete what others have in it."""
    found = rendered(tmp_path, controller=None)

    assert [key for key, each in found.items() if UNPRUNED.keys() & annotations(each)] == [("Namespace", "tidemill")]


def test_no_pod_template_says_what_git_tools_do(objects):
    """There it would restart every pod of a plan whose spec gets a controller."""
    for each in objects.values():
        assert not [name for name in UNPRUNED | MERGE_ANNOTATIONS if name in yaml.safe_dump(each.get("spec", {}))]


def test_flux_leaves_a_persons_order_alone(objects):
    """It takes over what managers such as kubectl-patch own, unless the object says that fields are merged."""
    assert annotations(objects["TidemillDeployment", "demo-day"]) == MERGE_ANNOTATIONS


def annotations(document):
    return document["metadata"].get("annotations", {})


def test_without_a_schedule_all_units_are_on_all_day():
    """As by a schedule of one window with all of them; so whoever wants turns alone writes none."""
    units = {"prefill.units": 2, "decode.units": 2}
    window = {"at": "00:00", "prefill_units": 2, "decode_units": 2}
    spec = check_spec(DEMO_SPEC)

    without, with_one = (
        compile_plan(change_spec(spec, {"kubernetes.controller": {}, "cluster.nodes": 6} | change))
        for change in (units, {"schedule": {"windows": [window]}})
    )

    assert without.digest == with_one.digest
    assert render_files(without) == render_files(with_one)

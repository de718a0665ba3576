"""What a plan asks of a cluster, read off its objects."""

import json
from decimal import Decimal

import pytest
import yaml

from planner.compiler import compile_plan
from planner.problems.errors import InfeasibleError
from planner.rules.check import check_spec
from stacks.doctor.needs import pod_limits, pod_requests, read_needs
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.doctor.clusters import demo_needs


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


def patched_needs(patch, folder):
    """The demo's, with a patch of its Deployment."""
    document = yaml.safe_load(DEMO_SPEC.read_text())
    for section, key in (("model", "config"), ("expert_load", "file")):
        document[section][key] = str((DEMO_SPEC.parent / document[section][key]).resolve())
    document.setdefault("kubernetes", {})["overlay"] = {"objects": [{"kind": "Deployment", "patch": patch}]}
    spec = folder / "spec.json"
    spec.write_text(json.dumps(document))
    return read_needs(compile_plan(check_spec(spec)))


def test_each_workload_is_a_set_of_pods_on_its_nodes(needs):
    """The gateway may go anywhere."""
    assert {each.owner: (each.component, each.num_pods, each.nodes) for each in needs.pod_sets} == {
        "demo-gateway": ("gateway", 1, ()),
        "demo-prefill-0": ("prefill", 1, ("node-0",)),
        "demo-decode-0": ("decode", 2, ("node-1", "node-2")),
    }


def test_every_kind_of_the_plan_is_asked_for(needs):
    """Those that the provider would ask for."""
    assert needs.kinds == [
        ("apps/v1", "Deployment"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("v1", "ConfigMap"),
        ("v1", "Namespace"),
        ("v1", "Service"),
        ("v1", "ServiceAccount"),
    ]


def container(requests=None, limits=None, **more):
    return {"resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def test_a_pod_holds_what_its_containers_ask_for():
    """A limit stands for a request; sidecars add up, and an init container counts where it alone takes more."""
    spec = {
        "containers": [container({"cpu": "500m"}, {"nvidia.com/gpu": "8"}), container({"cpu": "1"}, {"memory": "1Gi"})],
        "initContainers": [container({"cpu": "1"}), container({"cpu": "3"}), SIDECAR],
    }

    assert pod_requests(spec) == {"cpu": Decimal(3), "nvidia.com/gpu": 8, "memory": 3 * 2**29}
    assert pod_limits(spec) == {"nvidia.com/gpu": 8, "memory": 2**30}


SIDECAR = container({"cpu": "250m", "memory": "512Mi"}, restartPolicy="Always")


def test_what_pods_name_is_found_wherever_it_stands(needs):
    """Claims, Secrets, classes, queues and networks, each with the field that names it, and each once."""
    rendered = needs_with_everything()

    assert [str(each) for each in rendered] == [
        "Secret tidemill/login",
        "LocalQueue tidemill/inference",
        "ClusterIssuer tidemill-ca",
        "PersistentVolumeClaim tidemill/models",
        "Secret tidemill/token",
        "Secret tidemill/chat-keys",
        "PriorityClass production",
        "RuntimeClass nvidia",
        "NetworkAttachmentDefinition tidemill/rail-0",
        "NetworkAttachmentDefinition fabric/rail-1",
    ]


KEYS = {"secret": {"name": "chat-keys", "items": [{"key": "keys.json", "path": "keys.json"}]}}
MADE = {"secret": {"name": "u-tls", "items": [{"key": "tls.crt", "path": "tls/tls.crt"}]}}  # by its Certificate


def needs_with_everything():
    """What `_named` finds in one pod template that has everything."""
    from stacks.doctor import needs as module

    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "t", "optional": True}}},
        {"name": "PLAIN", "value": "1"},
    ]
    template = {
        "metadata": {"annotations": {module.NETWORKS: "rail-0, fabric/rail-1@net1"}},
        "spec": {
            "containers": [{"name": "c", "env": env}],
            "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "models"}},
                {"name": "s", "emptyDir": {}},
                {"name": "l", "projected": {"sources": [{"configMap": {}}, KEYS, MADE]}},
            ],
            "priorityClassName": "production",
            "runtimeClassName": "nvidia",
        },
    }
    account = {"metadata": {"name": "a"}, "imagePullSecrets": [{"name": "login"}]}
    workload = {"metadata": {"name": "u", "labels": {module.QUEUE: "inference"}}, "spec": {"template": template}}
    pod_set = module.PodSet("u", "decode", 1, (), (), template)
    issuer = {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "tidemill-ca"}
    spec = {"secretName": "u-tls", "issuerRef": issuer}
    certificate = {"kind": "Certificate", "metadata": {"name": "u"}, "spec": spec}
    return list(dict.fromkeys(module._find_required([account, workload, certificate], [pod_set, pod_set], "tidemill")))


def test_certificates_that_nobody_issues_are_secrets_to_be_made():
    """Each is a need of its own, and names the field that asks for it."""
    from stacks.doctor import needs as module

    template = {"spec": {"containers": [], "volumes": [{"name": "l", "projected": {"sources": [MADE, KEYS]}}]}}
    found = list(module._find_required([], [module.PodSet("u", "decode", 1, (), (), template)], "tidemill"))

    assert [(each.name, each.field) for each in found] == [("u-tls", "kubernetes.tls"), ("chat-keys", "gateway.keys")]


def test_networks_may_be_a_json_list():
    """Multus takes both forms."""
    from stacks.doctor.needs import _parse_networks

    text = '[{"name": "rail-0"}, {"name": "rail-1", "namespace": "fabric"}]'

    assert list(_parse_networks(text, "tidemill")) == [("tidemill", "rail-0"), ("fabric", "rail-1")]
    assert list(_parse_networks("", "tidemill")) == []


def test_a_plan_that_cannot_be_rendered_is_refused_like_everywhere():
    """Before the cluster is asked anything."""
    from planner.compiler import compile_plan
    from planner.problems.errors import InfeasibleError
    from planner.problems.finding import Finding
    from planner.rules.check import check_spec
    from tests.stacks.deployments import DEMO_SPEC

    plan = compile_plan(check_spec(DEMO_SPEC))
    refused = plan.with_sections(refusals=(Finding("", None, "S700 no", "why", "fix").at("x"),))

    with pytest.raises(InfeasibleError):
        read_needs(refused)


def template(**spec):
    return {"spec": {"template": {"spec": spec}}}


def networks(value):
    return {"spec": {"template": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": value}}}}}


@pytest.mark.parametrize(
    ("patch", "wrong"),
    [
        (
            template(containers=[{"name": "gateway", "resources": {"requests": {"cpu": "abc"}}}]),
            "resources.requests.cpu must be a quantity, and is 'abc'",
        ),
        (networks("[bad"), "k8s.v1.cni.cncf.io/networks must be a JSON list, and is '[bad'"),
        (networks("[1]"), "must be a map, and is 1"),
    ],
)
def test_a_patch_that_no_server_takes_is_a_problem(patch, wrong, tmp_path):
    """With the object and the place, instead of a traceback."""
    with pytest.raises(InfeasibleError) as caught:
        patched_needs(patch, tmp_path)

    (problem,) = caught.value.findings
    assert problem.rule.startswith("R202 ")
    assert problem.rule.endswith(wrong)
    assert problem.reason == "Deployment tidemill/demo-gateway would be refused"

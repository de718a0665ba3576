"""Who may connect to whom, as rendered; `tests/cluster/test_day.py` sees it refused and allowed on real nodes."""

import re

import kubernetes_validate
import pytest
import yaml

from planner.compiler import compile_plan
from planner.manifests.network import gateway_edges
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.rules.check import change_spec, check_spec
from tests.docs.rooms_table import ROOT
from tests.planner.layout.test_memory import PAIR
from tests.planner.test_shipped_specs import SPECS
from tests.templates.test_manifests import rendered_with
from tests.templates.test_schemas import VERSION


def policies(documents):
    """Name -> spec."""
    return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "NetworkPolicy"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's policies, and its objects."""
    documents = rendered_with(tmp_path_factory.mktemp("demo"), "  namespace: chat")
    return policies(documents), documents


def ports(rules):
    """Every port that `rules` name, first and last."""
    return [(each["port"], each.get("endPort", each["port"])) for rule in rules for each in rule.get("ports", [])]


def test_what_no_policy_allows_is_refused_both_ways(demo):
    """One policy is about every pod of the plan, and allows DNS alone."""
    everybody = demo[0]["demo"]

    assert everybody["podSelector"] == {"matchLabels": {"tidemill.dev/plan": "demo"}}
    assert "ingress" not in everybody
    assert ports(everybody["egress"]) == [(53, 53), (53, 53), (5353, 5353), (5353, 5353)]
    assert all(each["policyTypes"] == ["Ingress", "Egress"] for each in demo[0].values())


def test_every_port_that_a_pod_serves_is_somebodys_to_reach(demo):
    """A port that is added to a pod and forgotten here would be dead."""
    for each in demo[1]:
        template = each.get("spec", {}).get("leaderWorkerTemplate", {}).get("workerTemplate") or each.get(
            "spec", {}
        ).get("template")
        if template is None:
            continue
        served = {port["containerPort"] for one in template["spec"]["containers"] for port in one.get("ports", [])}
        reached = ports(demo[0][each["metadata"]["name"]]["ingress"])
        assert all(any(first <= port <= last for first, last in reached) for port in served)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_scrapers_reach_another_engines_router_where_it_tells_its_figures(engine):
    """Its port is its own, and not the one that our gateway would have."""
    changes = {"engine": engine, "kubernetes.image": "engine:1", "mixed.redundant_experts": 0}
    plan = compile_plan(change_spec(check_spec(SPECS / "h200-single-node.yaml"), changes))
    files = {name: yaml.safe_load(text) for name, text in render_files(plan).items() if name != KUSTOMIZATION}
    pod = files["deployment-deepseek-r1-gateway.yaml"]["spec"]["template"]["spec"]
    (served,) = (each["ports"] for each in pod["containers"])
    (told,) = (each["containerPort"] for each in served if each["name"] == "metrics")
    ingress = files["networkpolicy-deepseek-r1-gateway.yaml"]["spec"]["ingress"]

    assert ports([each for each in ingress if {"namespaceSelector": {}} in each.get("from", [])]) == [(told, told)]


def test_kv_goes_from_prefill_to_decode_and_to_nobody_else(demo):
    """At as many ports as a node has ranks."""
    prefill, decode = demo[0]["demo-prefill-0"], demo[0]["demo-decode-0"]

    assert (29600, 29601) in ports(decode["ingress"])
    assert (29600, 29601) in ports(prefill["egress"])
    assert 29600 not in [first for first, _ in ports(decode["egress"]) + ports(prefill["ingress"])]


def test_a_unit_is_open_to_itself_alone(demo):
    """The rule without ports names the unit's own pods, both ways."""
    for name in ("demo-prefill-0", "demo-decode-0"):
        own = [{"podSelector": {"matchLabels": {"tidemill.dev/unit": name}}}]
        of_unit = demo[0][name]
        assert [rule for rule in of_unit["ingress"] if "ports" not in rule] == [{"from": own}]
        assert [rule for rule in of_unit["egress"] if "ports" not in rule] == [{"to": own}]


def test_policies_are_what_kubernetes_takes(demo):
    """By its published schema."""
    for each in demo[1]:
        if each["kind"] == "NetworkPolicy":
            kubernetes_validate.validate(each, VERSION, strict=True)


def test_a_spec_may_have_none(tmp_path):
    """Where somebody else writes them."""
    assert policies(rendered_with(tmp_path, "  network_policies: false")) == {}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_other_engines_talk_among_themselves(engine, tmp_path):
    """Router and units at every port, and nobody else but at what is served to callers and scrapers."""
    document = PAIR | {"engine": engine, "model": {"catalog": "deepseek-r1", "checkpoint": "/models/deepseek-r1"}}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    files = render_files(compile_plan(check_spec(path)))
    found = policies(yaml.safe_load(text) for name, text in files.items() if name != KUSTOMIZATION)
    unit = next(spec for name, spec in found.items() if "decode" in name)

    plan = next(name for name in found if not name.endswith(("gateway", "-0")))
    assert {"from": [{"podSelector": {"matchLabels": {"tidemill.dev/plan": plan}}}]} in unit["ingress"]
    assert [rule["from"] for rule in unit["ingress"] if "ports" in rule] == [[{"namespaceSelector": {}}]]
    assert [rule for rule in unit["ingress"] if "from" not in rule] == []


def test_the_pages_overlay_lets_the_ingress_controller_alone_call_vllms_router(tmp_path):
    """With it the router's pod has no rule for anybody, and keeps those for the plan's pods and scrapers."""
    page = (ROOT / "docs" / "gpu-manifests.md").read_text()
    (overlay,) = (text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: NetworkPolicy" in text)
    model = {"catalog": "deepseek-r1", "checkpoint": "/models/deepseek-r1"}
    path = tmp_path / "spec.yaml"
    path.write_text(
        yaml.safe_dump(PAIR | {"name": "deepseek-r1", "engine": "vllm", "model": model} | yaml.safe_load(overlay))
    )
    plan = compile_plan(check_spec(path))
    planned = gateway_edges(plan)["ingress"]
    closed = yaml.safe_load(render_files(plan)["networkpolicy-deepseek-r1-gateway.yaml"])["spec"]["ingress"]

    assert [ports([rule]) for rule in closed] == [ports([rule]) for rule in planned]
    assert ["from" in rule for rule in planned] == [False, True, True]
    assert all(rule["from"] for rule in closed)

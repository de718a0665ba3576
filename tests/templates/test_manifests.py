"""The manifests of the demo, as Kubernetes will read them."""

import json
import re
from pathlib import Path

import jinja2
import pytest
import yaml

import templates
from planner.compiler import compile_plan
from planner.manifests.render import render_files
from planner.rules.check import check_spec

DEMO = Path(__file__).parents[2] / "stacks" / "specs" / "demo.yaml"
TEMPLATES = sorted(Path(templates.__file__).parent.glob("*.j2"))


@pytest.fixture(scope="module")
def plan():
    """The demo's."""
    return compile_plan(check_spec(DEMO))


@pytest.fixture(scope="module")
def files(plan):
    """File name -> text."""
    return render_files(plan)


@pytest.fixture(scope="module")
def objects(files):
    """File name -> the one object in it."""
    return {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in files.items()}


@pytest.fixture(scope="module")
def applied(objects):
    """The objects that reach the API server: all but kustomize's own."""
    return {name: each for name, each in objects.items() if each["kind"] != "Kustomization"}


def owner(document):
    """The object's name, less the content's digits of a launch file's ConfigMap."""
    name = document["metadata"]["name"]
    return name.rpartition("-")[0] if document["kind"] == "ConfigMap" else name


def pod_of(document):
    """The pod's spec in a LeaderWorkerSet or a Deployment."""
    spec = document["spec"]
    return spec.get("leaderWorkerTemplate", {}).get("workerTemplate", spec.get("template"))["spec"]


def rendered_with(folder, kubernetes):
    """The demo's objects with that text as the spec's `kubernetes` section."""
    return rendered_demo(folder, lambda text: f"{text}\nkubernetes:\n{kubernetes}")


def rendered_demo(folder, change):
    """The objects of the demo's spec after a change of its text."""
    path = folder / "spec.yaml"
    path.write_text(change(DEMO.read_text().replace("../../", f"{DEMO.parents[2]}/")))
    return [yaml.load(text, Loader=yaml.CSafeLoader) for text in render_files(compile_plan(check_spec(path))).values()]


def test_every_object_has_its_file(objects):
    """One object a file, named by kind and name, and all of them listed for kustomize."""
    names = [f"{each['kind'].lower()}-{owner(each)}.yaml" for each in list(objects.values())[1:]]

    assert list(objects) == ["kustomization.yaml", *names]
    assert objects["kustomization.yaml"]["resources"] == names


def test_what_is_rendered(objects):
    """The demo in objects: gateway, two units, and what they need."""
    kinds = [each["kind"] for each in objects.values()]

    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "ConfigMap": 3,
        "Deployment": 1,
        "Kustomization": 1,
        "LeaderWorkerSet": 2,
        "Namespace": 1,
        "NetworkPolicy": 4,
        "Service": 4,
        "ServiceAccount": 2,
    }


def test_every_object_has_our_labels(applied):
    """Kubernetes' recommended labels and the plan's name; those of a unit also say unit and phase."""
    for name, each in applied.items():
        labels = each["metadata"]["labels"]
        assert {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"} <= labels.keys()
        assert labels["tidemill.dev/plan"] == "demo"
        assert (
            ("tidemill.dev/unit" in labels)
            == ("tidemill.dev/phase" in labels)
            == ("code-0" in name or "fill-0" in name)
        )


def test_all_objects_are_in_the_namespace(applied):
    """But for the namespace itself."""
    namespaces = {each["metadata"].get("namespace") for each in applied.values() if each["kind"] != "Namespace"}

    assert namespaces == {"tidemill"}


def test_digests_are_only_on_object_metadata(applied):
    """On a pod template one would restart pods; and the whole plan's is nowhere, since any change would change it."""
    for each in applied.values():
        assert "sha256" not in json.dumps(each.get("spec", {}))
    assert "plan-digest" not in json.dumps(applied)
    unit = applied["leaderworkerset-demo-decode-0.yaml"]
    assert unit["metadata"]["annotations"].keys() == {"tidemill.dev/launch-digest", "tidemill.dev/unit-digest"}


def test_the_user_s_namespace_is_left_alone(objects, tmp_path):
    """With `create_namespace: false` everything but the Namespace is as it would be with one."""
    rendered = rendered_with(tmp_path, "  create_namespace: false\n")

    expected = [each for each in objects.values() if each["kind"] not in ("Namespace", "Kustomization")]
    assert rendered[1:] == expected


def test_nothing_sets_replicas(applied):
    """Whoever scales owns that field, where the spec names no number."""
    assert not [name for name, each in applied.items() if "replicas" in each.get("spec", {})]


def test_several_gateways_share_limits_and_leave_one_at_a_time(tmp_path):
    """They stand on different nodes if they can. A rollout takes one away before it brings another."""
    rendered = rendered_demo(tmp_path, lambda text: text.replace("gateway:\n", "gateway:\n  replicas: 3\n"))
    (gateway,) = [each for each in rendered if each["kind"] == "Deployment"]
    (budget,) = [each for each in rendered if each["kind"] == "PodDisruptionBudget"]
    pod = gateway["spec"]["template"]["spec"]

    assert gateway["spec"]["replicas"] == 3
    assert gateway["spec"]["strategy"] == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert "--gateways=3" in pod["containers"][0]["args"]
    assert pod["topologySpreadConstraints"][0]["labelSelector"] == gateway["spec"]["selector"]
    assert budget["metadata"]["name"] == gateway["metadata"]["name"]
    assert (budget["spec"]["minAvailable"], budget["spec"]["selector"]) == (2, gateway["spec"]["selector"])


def test_one_gateway_is_there_before_the_other_goes(applied):
    """A new one that never gets ready takes nothing away, and one that goes answers until every proxy knows."""
    spec = applied["deployment-demo-gateway.yaml"]["spec"]
    pod = spec["template"]["spec"]

    assert spec["strategy"] == {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert "replicas" not in spec
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 5 + 30 + 10


def test_the_gateway_has_not_failed_while_it_waits_for_units(tmp_path):
    """It is ready only once units are, and these may take `ready_timeout`, and in their turn a drain before it."""
    (gateway,) = (
        each for each in rendered_with(tmp_path, "  ready_timeout: 2h\n  drain: 1h") if each["kind"] == "Deployment"
    )

    assert gateway["spec"]["progressDeadlineSeconds"] == 2 * 3600 + 3600 + 10


def test_a_unit_is_a_group_of_pods_one_a_node(applied):
    """Decode on its two nodes: size 2, pinned there, restarted as one."""
    spec = applied["leaderworkerset-demo-decode-0.yaml"]["spec"]
    template = spec["leaderWorkerTemplate"]

    assert (spec["startupPolicy"], template["size"]) == ("LeaderCreated", 2)
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert named_nodes(template, "required") == named_nodes(template, "preferred") == ["node-1", "node-2"]


def test_a_unit_may_move_to_spares_and_prefers_its_own_nodes(tmp_path):
    """By the nodes' names, whatever their labels say, with a term for each: the API server takes one name a term."""
    nodes = "  nodes: 5\n  spares: [node-0, node-4]\n"
    rendered = rendered_demo(tmp_path, lambda text: text.replace("  nodes: 3\n", nodes))
    _, decode = (each for each in rendered if each["kind"] == "LeaderWorkerSet")
    template = decode["spec"]["leaderWorkerTemplate"]

    assert named_nodes(template, "required") == ["node-2", "node-3", "node-0", "node-4"]
    assert named_nodes(template, "preferred") == ["node-2", "node-3"]


def test_no_two_pods_of_units_share_a_node(applied):
    """The rule is for any two units of the plan, whose pods ask for no GPUs here, and not for the gateway's pod."""
    units = [each["spec"]["leaderWorkerTemplate"]["workerTemplate"] for name, each in applied.items() if "set-" in name]
    gateway = applied["deployment-demo-gateway.yaml"]["spec"]["template"]
    for template in units:
        (apart,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        selector = apart["labelSelector"]
        (exists,) = selector["matchExpressions"]

        def is_kept_off(pod, selector=selector, label=exists["key"]):
            labels = pod["metadata"]["labels"]
            return selector["matchLabels"].items() <= labels.items() and label in labels

        assert (apart["topologyKey"], exists["operator"]) == ("kubernetes.io/hostname", "Exists")
        assert [is_kept_off(pod) for pod in (*units, gateway)] == [True, True, False]


def named_nodes(template, kind):
    """The names of the nodes that a unit's pods must, or would rather, be on."""
    wanted = template["workerTemplate"]["spec"]["affinity"]["nodeAffinity"][
        f"{kind}DuringSchedulingIgnoredDuringExecution"
    ]
    terms = wanted["nodeSelectorTerms"] if kind == "required" else [each["preference"] for each in wanted]
    assert all(list(term) == ["matchFields"] for term in terms)
    (fields,) = {
        (field["key"], field["operator"], len(field["values"])) for term in terms for field in term["matchFields"]
    }
    assert fields == ("metadata.name", "In", 1)
    return [field["values"][0] for term in terms for field in term["matchFields"]]


def test_selectors_pick_the_pods_they_are_for(applied):
    """Each Service finds the pods of its unit, or the gateway's, and no others."""
    pods = {
        "demo-prefill-0": applied["leaderworkerset-demo-prefill-0.yaml"]["spec"]["leaderWorkerTemplate"][
            "workerTemplate"
        ],
        "demo-decode-0": applied["leaderworkerset-demo-decode-0.yaml"]["spec"]["leaderWorkerTemplate"][
            "workerTemplate"
        ],
        "demo-gateway": applied["deployment-demo-gateway.yaml"]["spec"]["template"],
    }
    found = {
        each["metadata"]["name"]: [
            pod
            for pod, template in pods.items()
            if each["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ]
        for each in applied.values()
        if each["kind"] == "Service"
    }

    assert found == {
        "demo-gateway": ["demo-gateway"],
        "demo-registry": ["demo-gateway"],
        "demo-prefill-0": ["demo-prefill-0"],
        "demo-decode-0": ["demo-decode-0"],
    }


def test_peers_can_be_found_before_they_are_ready(applied):
    """Waiting for the group must not deadlock: the Services by which ranks meet are published from the start."""
    early = {
        each["metadata"]["name"]
        for each in applied.values()
        if each["kind"] == "Service" and each["spec"].get("publishNotReadyAddresses")
    }

    assert early == {"demo-registry", "demo-prefill-0", "demo-decode-0"}


def test_pods_are_told_the_runtimes_command_line(applied):
    """Node and address by the downward API, the leader by LeaderWorkerSet, the launch file from the ConfigMap."""
    pod = applied["leaderworkerset-demo-decode-0.yaml"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    (container,) = pod["containers"]

    assert container["command"] + container["args"] == [
        *("python", "-m", "runtime", "node"),
        "--launch=/etc/tidemill/demo-decode-0.launch.json",
        "--node=$(NODE_NAME)",
        "--address=$(POD_IP)",
        "--leader=$(LWS_LEADER_ADDRESS)",
        "--gateway=demo-registry",
        "--drain=30",
    ]
    assert {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"]} == {
        "NODE_NAME": "spec.nodeName",
        "POD_IP": "status.podIP",
    }


def test_pods_meet_the_restricted_standard(applied):
    """No root, no privileges, no service account token, nothing to write to but /tmp."""
    pods = [
        applied["deployment-demo-gateway.yaml"]["spec"]["template"]["spec"],
        applied["leaderworkerset-demo-decode-0.yaml"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"],
    ]
    for pod in pods:
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_config_maps_hold_the_launch_files_byte_for_byte(applied, plan):
    """What pods mount is what `tidemill up` would have written."""
    mounted = {}
    for each in applied.values():
        if each["kind"] == "ConfigMap":
            mounted |= each["data"]

    assert mounted == plan.launch_files()


def test_another_launch_file_is_another_config_map(applied, plan):
    """Named by its content, never changed in place: so exactly the pods that mount it are replaced."""
    for each in (each for each in applied.values() if each["kind"] == "ConfigMap"):
        (file,) = each["data"]
        digest = plan.launch_documents[file]["launch_digest"].removeprefix("sha256:")
        assert each["metadata"]["name"] == f"{owner(each)}-{digest[:10]}"
        assert each["immutable"] is True


def test_pods_mount_their_own_launch_file(applied):
    """The ConfigMap that a pod names is there, and holds the file that its command names."""
    mounted = {each["metadata"]["name"]: list(each["data"]) for each in applied.values() if each["kind"] == "ConfigMap"}
    for name, each in applied.items():
        if each["kind"] in ("Deployment", "LeaderWorkerSet"):
            pod = pod_of(each)
            (source,) = pod["volumes"][0]["projected"]["sources"]
            (file,) = mounted.pop(source["configMap"]["name"])
            assert f"--launch=/etc/tidemill/{file}" in pod["containers"][0]["args"], name
    assert mounted == {}


def test_a_pod_is_ready_when_its_process_says_so(applied):
    """The gateway when a request can be answered; a unit's pod when its whole unit has joined and loaded."""
    for each in applied.values():
        if each["kind"] in ("Deployment", "LeaderWorkerSet"):
            (container,) = pod_of(each)["containers"]
            probe = container["readinessProbe"]["httpGet"]
            assert probe["path"] == "/readyz"
            assert probe["port"] in [port["name"] for port in container["ports"]]


def test_volumes_and_resources_of_the_spec_reach_every_pod(tmp_path):
    """Read-only mounts for all; CPUs requested, memory requested and limited, by kind of pod."""
    rendered = rendered_with(
        tmp_path,
        "  volumes: [{host_path: /mnt/models, mount_path: /models}, {claim: tables, mount_path: /tables}]\n"
        "  resources: {unit: {cpus: 0.5, memory: 1.5GiB}, gateway: {cpus: 2, memory: 1GiB}}\n",
    )
    pods = {each["kind"]: pod_of(each) for each in rendered if each["kind"] in ("Deployment", "LeaderWorkerSet")}
    for pod in pods.values():
        assert pod["volumes"][2:] == [
            {"name": "volume-0", "hostPath": {"path": "/mnt/models", "type": "Directory"}},
            {"name": "volume-1", "persistentVolumeClaim": {"claimName": "tables", "readOnly": True}},
        ]
        assert pod["containers"][0]["volumeMounts"][2:] == [
            {"name": "volume-0", "mountPath": "/models", "readOnly": True},
            {"name": "volume-1", "mountPath": "/tables", "readOnly": True},
        ]
    assert {kind: pod["containers"][0]["resources"] for kind, pod in pods.items()} == {
        "Deployment": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "LeaderWorkerSet": {"requests": {"cpu": "500m", "memory": "1536Mi"}, "limits": {"memory": "1536Mi"}},
    }


@pytest.mark.parametrize(
    ("claim", "source", "user", "level"),
    [
        ("", {"hostPath": {"path": "/mnt/kv", "type": "DirectoryOrCreate"}}, 0, "privileged"),
        ("  kv_cache_claim: kv\n", {"persistentVolumeClaim": {"claimName": "kv"}}, None, None),
    ],
    ids=["the nodes' own disks", "a claim"],
)
def test_pods_of_ranks_that_keep_kv_have_its_memory_and_its_disk(tmp_path, claim, source, user, level):
    """They may write to the disk, and request the memory of their two ranks; pods of decode and gateway get neither."""
    kept = "kv_cache: {memory: 1GiB, disk: {path: /mnt/kv, size: 1TB}}\n"
    rendered = rendered_demo(tmp_path, lambda text: f"{text}{kept}kubernetes:\n  image: example.com/runtime:1\n{claim}")
    workloads = [each for each in rendered if each["kind"] in ("Deployment", "LeaderWorkerSet")]
    pods = {each["metadata"]["name"]: pod_of(each) for each in workloads}
    (container,) = pods["demo-prefill-0"]["containers"]
    (namespace,) = (each["metadata"]["labels"] for each in rendered if each["kind"] == "Namespace")

    assert pods["demo-prefill-0"]["volumes"][-1] == {"name": "kv", **source}
    assert container["volumeMounts"][-1] == {"name": "kv", "mountPath": "/mnt/kv"}
    assert container["resources"] == {"requests": {"memory": "3Gi"}}
    assert container["securityContext"].get("runAsUser") == user
    assert namespace.get("pod-security.kubernetes.io/enforce") == level
    for name in ("demo-decode-0", "demo-gateway"):
        assert "kv" not in [volume["name"] for volume in pods[name]["volumes"]]
        assert "resources" not in pods[name]["containers"][0]


def test_secrets_to_pull_the_image_reach_every_account(tmp_path):
    """By reference, and only where the spec names some."""
    rendered = rendered_with(tmp_path, "  image_pull_secrets: [registry-login, mirror]\n")
    accounts = [each for each in rendered if each["kind"] == "ServiceAccount"]

    assert [each["imagePullSecrets"] for each in accounts] == [[{"name": "registry-login"}, {"name": "mirror"}]] * 2


def test_keys_reach_the_gateway_by_reference(tmp_path):
    """One file of the Secret beside the launch file, so that it changes without a restart; units get none."""
    rendered = rendered_demo(tmp_path, lambda text: text.replace("gateway:\n", "gateway:\n  keys: chat-keys\n"))
    pods = {each["kind"]: pod_of(each) for each in rendered if each["kind"] in ("Deployment", "LeaderWorkerSet")}
    sources = {kind: pod["volumes"][0]["projected"]["sources"] for kind, pod in pods.items()}

    assert "--keys=/etc/tidemill/keys.json" in pods["Deployment"]["containers"][0]["args"]
    secret = {"name": "chat-keys", "items": [{"key": "keys.json", "path": "keys.json"}]}
    assert sources["Deployment"][-1] == {"secret": secret}
    assert "chat-keys" not in json.dumps([each for each in rendered if each["kind"] != "Deployment"])


@pytest.fixture(scope="module")
def issued(tmp_path_factory):
    """The demo's objects where an issuer of the cluster makes its certificates."""
    return rendered_with(tmp_path_factory.mktemp("tls"), "  tls: {issuer: tidemill-ca, issuer_kind: ClusterIssuer}\n")


def test_certificates_reach_every_pod_by_reference(issued):
    """Each in its own Secret beside the launch file, for the pod alone to read, and renewed while the pod runs."""
    for owner_name, kind in (("demo-gateway", "Deployment"), ("demo-decode-0", "LeaderWorkerSet")):
        (workload,) = (each for each in issued if each["kind"] == kind and each["metadata"]["name"] == owner_name)
        pod = pod_of(workload)
        source = pod["volumes"][0]["projected"]["sources"][-1]["secret"]

        assert "--tls=/etc/tidemill/tls" in pod["containers"][0]["args"]
        assert source["name"] == f"{owner_name}-tls"
        assert [each["key"] for each in source["items"]] == ["tls.crt", "tls.key", "ca.crt"]
        assert {(each["path"], each["mode"]) for each in source["items"]} == {
            (f"tls/{each['key']}", 0o440) for each in source["items"]
        }


def test_each_certificate_says_who_its_launch_file_expects(issued, plan):
    """The gateway's is good for a server, a unit's for a client, and their URIs are those of the launch files."""
    certificates = {each["metadata"]["name"]: each["spec"] for each in issued if each["kind"] == "Certificate"}
    units = [unit.name for unit in plan.units]

    assert certificates.keys() == {"demo-gateway", *units}
    assert certificates["demo-gateway"]["uris"] == [plan.unit_document(plan.units[0])["tls"]["gateway"]]
    prefix = plan.launch_documents["gateway.launch.json"]["tls"]["units"]
    assert {name: certificates[name]["uris"] for name in units} == {name: [prefix + name] for name in units}
    assert certificates["demo-gateway"]["usages"] == ["digital signature", "server auth"]
    assert {tuple(certificates[name]["usages"]) for name in units} == {("digital signature", "client auth")}
    assert {each["secretName"] for each in certificates.values()} == {f"{name}-tls" for name in certificates}
    assert {each["issuerRef"]["kind"] for each in certificates.values()} == {"ClusterIssuer"}


def test_without_an_issuer_the_secrets_are_somebody_elses(tmp_path):
    """Pods mount them by the same names, and no Certificate is rendered."""
    rendered = rendered_with(tmp_path, "  tls: {}\n")

    assert "demo-gateway-tls" in json.dumps(rendered)
    assert not [each for each in rendered if each["kind"] == "Certificate"]


def test_rendering_again_gives_the_same_bytes(files):
    """From the spec, twice."""
    assert render_files(compile_plan(check_spec(DEMO))) == files


def test_text_of_a_spec_cannot_become_yaml(tmp_path):
    """Whatever characters a variable has, it stays one string."""
    value = 'x":{{7*7}}#&amp;'
    unit = next(
        each
        for each in rendered_with(tmp_path, f"  env: {{A: {json.dumps(value)}}}\n")
        if each["kind"] == "LeaderWorkerSet"
    )
    pod = unit["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]

    assert {"name": "A", "value": value} in pod["containers"][0]["env"]


@pytest.mark.parametrize("text", ["\U0001f600", "a\U0010ffff\u00e9\u2028\x7f\x85\t\\U0001f600", "[1]: x\n- y"])
def test_every_character_stays_itself(text, tmp_path):
    """Those past 16 bits too, which JSON writes as two surrogates that YAML does not join."""
    overlay = f"{{unit_pod: {{metadata: {{annotations: {{a: {escaped(text)}}}}}}}}}"
    more = f"  env: {{A: {escaped(text)}}}\n  overlay: {overlay}\n"
    unit = next(each for each in rendered_with(tmp_path, more) if each["kind"] == "LeaderWorkerSet")
    template = unit["spec"]["leaderWorkerTemplate"]["workerTemplate"]

    assert template["metadata"]["annotations"] == {"a": text}
    assert {"name": "A", "value": text} in template["spec"]["containers"][0]["env"]


def escaped(text):
    """As YAML has it in quotes, in ASCII."""
    return '"' + "".join(f"\\U{ord(each):08x}" for each in text) + '"'


@pytest.mark.parametrize("key", ["null", "true", "on", "1", "1.5", "1e3", "0x1f", "12_0"])
def test_keys_of_a_spec_stay_text(key, tmp_path):
    """Also those that YAML reads as something else without quotes."""
    annotations = f'{{metadata: {{annotations: {{"{key}": a}}}}}}'
    more = f'  overlay: {{unit_pod: {annotations}}}\n  node_selector: {{"{key}": b}}\n'
    unit = next(each for each in rendered_with(tmp_path, more) if each["kind"] == "LeaderWorkerSet")
    template = unit["spec"]["leaderWorkerTemplate"]["workerTemplate"]

    assert template["metadata"]["annotations"] == {key: "a"}
    assert template["spec"]["nodeSelector"] == {key: "b"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_only_have_holes(template):
    """No arithmetic, no defaults, branches only on presence; and each parses."""
    text = template.read_text()
    jinja2.Environment().parse(text)
    code = re.findall(r"\{[{%](.*?)[}%]\}", text, flags=re.DOTALL)

    assert not [each for each in code if re.search(r"default|[*/+<>=~]|\bset\b", each)]
    assert all(each.strip(" -").endswith("is defined") for each in code if re.match(r"-?\s*if\b", each))

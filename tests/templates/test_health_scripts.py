"""What Argo CD and Flux think of a unit and of a deployment, by the scripts that we give them.

`leaderworkersets.json` has objects as LeaderWorkerSet 0.9 wrote them on the test cluster, less their templates. Argo CD
runs Lua 5.1, and Flux CEL; `tests/cluster/test_flux.py` asks the real Flux.
"""

import json
from pathlib import Path

import celpy
import pytest
import yaml
from lupa.lua51 import LuaRuntime

import templates
from tests.stacks.controller.days import MIDNIGHT, OFF, READY, STARTING, situation
from tests.stacks.controller.test_report import build, build_wrong_day_status

HEALTH = Path(templates.__file__).parent / "gitops" / "health"
(FLUX,) = yaml.safe_load((HEALTH / "flux.yaml").read_text())
RECORDED = json.loads((Path(__file__).parent / "leaderworkersets.json").read_text())
UNIT = next(each["object"] for each in RECORDED if each["state"].startswith("serves with the former"))
SEEN = {"metadata": {"generation": 1}}


def argo_cd(document):
    """The health that Argo CD shows of an object. It gives scripts the object and no library but the basic ones."""
    kind = f"{document['apiVersion'].partition('/')[0]}_{document['kind']}"
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    for each in ("os", "io", "package", "require", "debug"):
        lua.globals()[each] = None
    lua.globals()["obj"] = lua.table_from(document, recursive=True)
    health = lua.execute((HEALTH / f"{kind}.lua").read_text())
    assert set(health) == {"status", "message"}
    return health["status"]


def flux(document):
    """The health that Flux sees: it compares generations first, and what it cannot judge is not healthy yet."""
    status = document.get("status", {})
    if status.get("observedGeneration", document["metadata"]["generation"]) != document["metadata"]["generation"]:
        return "Progressing"
    environment = celpy.Environment()
    program = environment.program(environment.compile(FLUX["current"]))
    try:
        is_current = program.evaluate({key: celpy.json_to_cel(value) for key, value in document.items()})
    except celpy.CELEvalError:
        return "Progressing"
    return "Healthy" if is_current else "Progressing"


@pytest.mark.parametrize("tool", [argo_cd, flux])
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["state"])
def test_a_unit_is_healthy_when_it_serves_with_its_newest_template(tool, recorded):
    """Or when it is off. One that serves and awaits its turn is Progressing, although it is Available."""
    assert tool(recorded["object"]) == recorded["health"]


def test_other_leaderworkersets_may_keep_groups_back():
    """Argo CD has one script for a kind: a canary of somebody else must not be Progressing for ever."""
    of_others = UNIT | {"metadata": UNIT["metadata"] | {"labels": {}}}

    assert (argo_cd(UNIT), argo_cd(of_others)) == ("Progressing", "Healthy")


@pytest.mark.parametrize(
    ("status", "health"),
    [
        ({"observedGeneration": -1}, "Progressing"),
        (build(situation((READY, OFF, READY, OFF))), "Healthy"),
        (build(situation((READY, OFF, STARTING, OFF))), "Progressing"),
        (build(situation((READY, OFF, READY, OFF))) | {"observedGeneration": 0}, "Progressing"),
        (build_wrong_day_status("spec.timezone is no name", MIDNIGHT, SEEN), "Degraded"),
    ],
    ids=["seen by nobody", "carried out", "a unit is late", "the plan before", "nobody can follow its day"],
)
def test_a_deployment_is_healthy_when_its_plan_is_carried_out(status, health):
    """Argo CD has no check for kinds that it does not know, and takes them for healthy. Flux reads the conditions."""
    document = {"apiVersion": "tidemill.dev/v1alpha1", "kind": "TidemillDeployment", "status": status} | SEEN

    assert argo_cd(document) == health

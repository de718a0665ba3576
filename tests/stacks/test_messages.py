"""The page of messages of what runs, asks or deploys."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

import stacks
from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.local import deployment
from stacks.local.errors import LocalError
from stacks.local.layout import lay_out_locally
from tests.stacks.deployments import DEMO_SPEC
from tests.stacks.messages import BROUGHT_ABOUT, DEMO, LOCAL_MESSAGES, Folder, local_messages_page

RULE = re.compile(r"\"(R\d{3}) ")
STACKS = Path(stacks.__file__).parent


def test_the_page_of_messages_is_up_to_date(tmp_path):
    """Whoever rewords a message reads it among all others: `python -m tests.docs` writes the page again."""
    assert LOCAL_MESSAGES.read_text() == local_messages_page(tmp_path), "write it again with python -m tests.docs"


def test_every_rule_is_on_the_page():
    """A rule of ours that the code can say is brought about once, and no other is."""
    said = {rule for path in STACKS.rglob("*.py") for rule in RULE.findall(path.read_text())}

    assert said == {rule for rule in BROUGHT_ABOUT if rule.startswith("R")}


def test_every_address_is_asked_before_anything_starts():
    """Whoever has one of them, be it a gateway or a node of ours: the port that its process would take is in use."""
    plan = compile_plan(check_spec(DEMO_SPEC))
    listeners = lay_out_locally(plan, Path("launch"), Path("tls"), Path("kv"), "127.99.7.1").listeners
    taken = listeners[-1].address, listeners[-1].port
    with socket.create_server(taken), pytest.raises(LocalError, match=f"cannot listen on {taken[0]}:{taken[1]} .*R123"):
        deployment.require_free(listeners)
    deployment.require_free(listeners)

    nodes = {node for unit in plan.units for node in unit.nodes}
    assert len({each.address for each in listeners}) == len(nodes) + 1


def test_a_port_that_is_taken_is_met_with_another_address():
    """Two users of one machine can each have a deployment."""
    failure = "cannot listen on 127.0.0.3:29501 (where the unit's nodes meet): address already in use"
    gone = Folder(lives=False, record=replace(DEMO, failure=failure))

    with pytest.raises(LocalError) as caught:
        list(deployment.follow(gone))

    assert "--host" in caught.value.findings[0].message

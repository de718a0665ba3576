"""What a way to a cluster knows of the server, its time, and what it says of it."""

import base64
import json
from datetime import UTC, datetime

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration

from stacks.kube.connection import Connection
from stacks.kube.errors import KubeconfigError, UnreachableError
from tests.stacks.kube.fake_api import running_fake_api

NOON = datetime(2025, 11, 25, 12, tzinfo=UTC).timestamp()
OWN = NOON + 3600  # a clock that is an hour ahead


@pytest.mark.parametrize(
    ("written", "told"), [("Tue, 25 Nov 2025 12:00:00 GMT", NOON), ("noon", OWN), ("Tue, 45 Nov 2025 12:00:00", OWN)]
)
def test_the_time_is_the_servers(monkeypatch, written, told):
    """As its last answer told it, and as much later as has gone by; ours alone where it tells none."""
    with running_fake_api() as (_, api):
        monkeypatch.setattr("http.server.BaseHTTPRequestHandler.date_time_string", lambda _: written)
        monotonic = iter((100.0, 107.0)).__next__
        monkeypatch.setattr(api._connection, "_clock", lambda: OWN)
        monkeypatch.setattr(api._connection, "_monotonic", monotonic)

        assert api.now() == told + 7


@pytest.mark.parametrize("host", ["127.0.0.1:1", "127.0.0.1:port", "nowhere.invalid"])
def test_no_message_has_a_password_of_the_kubeconfig(host):
    """Some write it into the server's address."""
    connection = Connection(ApiClient(Configuration(host=f"https://eve:s3cret@{host}")))
    with pytest.raises(UnreachableError, match=f"https://{host}") as error:
        connection.request("GET", "/api", "cluster")

    assert "eve" not in str(error.value)


KUBECONFIG = """
current-context: one
contexts: [{name: one, context: {cluster: c, user: u}}, {name: two, context: {cluster: d, user: u}}]
clusters: [{name: c, cluster: {server: "https://c:1"}}, {name: d, cluster: {server: "https://d:1"}}]
users: [{name: u, user: {token: s3cret}}]
"""


def test_a_kubeconfig_may_be_given_as_path_or_content(tmp_path):
    """A program that makes a cluster has its kubeconfig as text; then no file of this machine counts."""
    (tmp_path / "config").write_text(KUBECONFIG)
    as_json = json.dumps(yaml.safe_load(KUBECONFIG))

    assert Connection.from_kubeconfig(None, KUBECONFIG).address == "https://c:1"
    assert {
        Connection.from_kubeconfig("two", each).address for each in (KUBECONFIG, as_json, str(tmp_path / "config"))
    } == {"https://d:1"}


@pytest.mark.parametrize("before", ["\ufeff", "  ", "\r\n"])
def test_content_may_begin_with_blanks_or_a_byte_order_mark(before):
    """Editors and templates write them."""
    as_json = json.dumps(yaml.safe_load(KUBECONFIG))

    assert Connection.from_kubeconfig(None, before + as_json).address == "https://c:1"


@pytest.mark.parametrize("from_variable", [False, True])
@pytest.mark.parametrize("given", [base64.b64encode(KUBECONFIG.encode()).decode(), "s3cret", "s3cret" * 1000])
def test_a_kubeconfig_that_is_no_path_is_not_shown(given, from_variable, monkeypatch):
    """Encoded content is in one line too, and CI keeps what is printed."""
    monkeypatch.setenv("KUBECONFIG", given)
    with pytest.raises(KubeconfigError, match="no usable current context in the kubeconfig ") as e:
        Connection.from_kubeconfig(None, None if from_variable else given)

    assert given not in str(e.value)


WRONG = [
    "[: s3cret\n",
    KUBECONFIG.replace("contexts", "contextz"),
    KUBECONFIG.replace("token", "client-key"),
    KUBECONFIG.replace("{token: s3cret}", "s3cret"),
    KUBECONFIG.replace("https://c:1", "").replace("https://d:1", "").replace('""', "3"),
    "contexts: s3cret\n",
    "s3cret\n",
    "- s3cret\n",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_kubeconfig_given_as_text_is_not_shown(wrong):
    """It has credentials in it."""
    with pytest.raises(
        KubeconfigError, match="no usable current context in the kubeconfig that was given as text"
    ) as e:
        Connection.from_kubeconfig(None, wrong)

    assert "s3cret" not in str(e.value)

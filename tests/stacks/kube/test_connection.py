"""What a way to a cluster knows of the server, its time, and what it says of it."""

from datetime import UTC, datetime

import pytest
from kubernetes.client import ApiClient, Configuration

from stacks.kube.connection import Connection
from stacks.kube.errors import UnreachableError
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

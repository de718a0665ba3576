"""One request to the API server, and its answer: JSON, or an error that is a sentence.

This is the only file that makes requests. The package `kubernetes` reads the kubeconfig for it: addresses,
certificates, tokens, login programs. Every request ends: with an answer, or because its time is up.

Each answer has the server's time, which objects' timestamps follow; this machine's clock may differ by an hour.
"""

import json
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration
from urllib3.connectionpool import ConnectionPool

from planner.problems.printable import without_secrets
from stacks.kube.errors import KubeconfigError, RefusedError, UnreachableError

__all__ = ["CONNECT_TIMEOUT_S", "Connection", "is_content"]

CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 40  # admission webhooks may take 30 s
LONGEST_PAUSE_S = 5.0  # assumed: an overloaded API server asks for 1 s
CONNECTIONS = 64  # connections kept open; more requests at once open more

MISSHAPEN = (ValueError, KeyError, TypeError, AttributeError)  # what the client raises for a value of another type
NAMED_FILE = re.compile(r"^File does not exist: .*", re.DOTALL)  # the client's words; the rest may be a key
UNTRUSTED = re.compile(r"certificate verify failed: (?P<why>.*?)\.? \(_ssl")


class Retries(urllib3.Retry):
    """Retries any request after a dropped connection, and when an overloaded server asks for it; not after a timeout.

    A long pause that a server asks for is cut short, since the waiting user does not see why nothing happens.
    """

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """Return the seconds to wait that the server asks for, at most `LONGEST_PAUSE_S`.

        Return None if the server asks for none.
        """
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, LONGEST_PAUSE_S)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """Return the retries that are left. Raises `error` if it is a timeout, or if no retries are left."""
        if isinstance(error, urllib3.exceptions.TimeoutError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


RETRIES = Retries(total=3, connect=0, allowed_methods=None, raise_on_status=False)


class Connection:
    """A connection to one cluster's API server. May be used by many threads."""

    def __init__(
        self, client: ApiClient, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Make requests with `client`.

        `clock` returns this machine's time, used if the server sends none; `monotonic` returns seconds that
        only grow.
        """
        self._client, self._clock, self._monotonic = client, clock, monotonic
        self._last_date: tuple[float, float] | None = None  # the server's time, and when we heard it

    @classmethod
    def from_kubeconfig(cls, context: str | None, kubeconfig: str | None = None) -> Self:
        """Connect with the settings of `kubeconfig`, a path or content.

        If `kubeconfig` is empty, the file is the one that KUBECONFIG names, or else the one in the home folder. Without
        a `context` the kubeconfig's current one is used. No request is made. Raises KubeconfigError if the kubeconfig
        is missing or wrong.
        """
        settings = _settings()
        try:
            _load_kubeconfig(kubeconfig, context, settings)
        except (config.ConfigException, yaml.YAMLError, OSError, *MISSHAPEN) as error:
            raise KubeconfigError(_kubeconfig_problem(context, kubeconfig, error)) from None
        return cls(ApiClient(settings))

    @classmethod
    def from_service_account(cls) -> Self:
        """Connect as the service account of this process's pod. When the account's token is renewed, it is read again.

        No request is made. Raises KubeconfigError if this process is not in a pod with a service account.
        """
        settings = _settings()
        try:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise KubeconfigError(
                f"this is no pod with a service account ({reason}); elsewhere, name a context of the kubeconfig"
            ) from error
        return cls(ApiClient(settings))

    @property
    def address(self) -> str:
        """The server's address, `https://10.0.0.1:6443`, without the password that a kubeconfig may have there."""
        return without_secrets(str(self._client.configuration.host))

    @property
    def server_time(self) -> float | None:
        """The server's present time in seconds since 1970; this machine's time if the server sends none.

        None before the first answer.
        """
        if self._last_date is None:
            return None
        told, heard_at = self._last_date
        return told + self._monotonic() - heard_at

    def request(
        self,
        verb: str,
        path: str,
        subject: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Any:
        """Send a request and return the JSON object of the answer.

        Raises RefusedError, which names the `subject`, if the server answers with an error, and UnreachableError if it
        gives no answer or no JSON object.
        """
        written = self._send(verb, path, subject, query, body, content_type, accept, answer_timeout_s)
        answer = _parse_body(written)
        if not isinstance(answer, dict):
            raise self.unexpected_answer(f"its answer to {verb} {path} is no JSON object")
        return answer

    def read_text(self, path: str, subject: str, *, answer_timeout_s: float) -> str:
        """Return the text at `path`, which need not be JSON.

        Raises RefusedError if the server answers with an error, and UnreachableError if it does not answer.
        """
        return self._send("GET", path, subject, (), None, "", "text/plain", answer_timeout_s).decode(errors="replace")

    def _send(
        self,
        verb: str,
        path: str,
        subject: str,
        query: Sequence[tuple[str, str]],
        body: Any,
        content_type: str,
        accept: str,
        answer_timeout_s: float,
    ) -> bytes:
        """Send a request and return the body of the answer.

        Raises RefusedError if the server answers with an error, and UnreachableError if it does not answer.
        """
        try:
            request = self._client.param_serialize(
                verb,
                path,
                query_params=list(query),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=(CONNECT_TIMEOUT_S, answer_timeout_s))
            self._last_date = _parse_date(response.headers.get("Date"), self._clock()), self._monotonic()
            answer: bytes = response.read()  # type: ignore[no-untyped-call]
        except (urllib3.exceptions.HTTPError, ApiException, OSError, config.ConfigException) as error:
            why = _connection_problem(self.address, error).replace(str(self._client.configuration.host), self.address)
            raise UnreachableError(why) from error
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise RefusedError(subject, response.status, _parse_body(answer))
        return answer

    def unexpected_answer(self, why: str) -> UnreachableError:
        """Return the error for an answer that no API server would give. `why` says what is wrong with it."""
        return UnreachableError(
            f"{self.address} answers, but not as an API server does ({why}); correct the kubeconfig's server"
        )


def is_content(given: str) -> bool:
    """Return whether `given` is the content of a YAML or JSON file. Otherwise it is a file's path."""
    return "\n" in given or given.lstrip("\ufeff \t\r").startswith("{")


def _load_kubeconfig(kubeconfig: str | None, context: str | None, settings: Configuration) -> None:
    if kubeconfig is None or not is_content(kubeconfig):
        config.load_kube_config(kubeconfig, context, settings)  # type: ignore[no-untyped-call]
        return
    content = yaml.safe_load(kubeconfig)
    config.load_kube_config_from_dict(content, context, settings)  # type: ignore[no-untyped-call]


def _settings() -> Configuration:
    settings = Configuration()
    settings.retries = RETRIES
    settings.connection_pool_maxsize = CONNECTIONS
    return settings


def _parse_date(written: str | None, otherwise: float) -> float:
    """Return the time in an answer's Date header (RFC 9110, 6.6.1), in seconds since 1970.

    Return `otherwise` if the header is missing or no date.
    """
    try:
        return parsedate_to_datetime(written or "").timestamp()
    except ValueError:
        return otherwise


def _parse_body(body: bytes) -> Any:
    """Return the JSON of an answer's body; its text if the body is no JSON, or is nested too deep to be read."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")


def _kubeconfig_problem(context: str | None, kubeconfig: str | None, error: Exception) -> str:
    wanted = f"context {context}" if context else "current context"
    place, reason = _describe_kubeconfig(kubeconfig, error)
    reason = " ".join(reason.split()).removeprefix("Invalid kube-config file. ").rstrip(".")
    valid = "give the content or the path of a valid one" if kubeconfig else "set KUBECONFIG to a valid file"
    return (
        f"no usable {wanted} in the kubeconfig {place} ({reason}); "
        f"{valid}, and the context to one of `kubectl config get-contexts`"
    )


def _describe_kubeconfig(kubeconfig: str | None, error: Exception) -> tuple[str, str]:
    """Return (a phrase that names the unusable kubeconfig, the reason why it is unusable).

    Neither quotes a kubeconfig that was given as content: it may hold credentials.
    """
    if not kubeconfig:
        return "that KUBECONFIG names" if os.environ.get("KUBECONFIG") else "~/.kube/config", str(error)
    if is_content(kubeconfig):
        # Other messages about YAML quote its lines, which may be credentials.
        reason = str(error) if isinstance(error, config.ConfigException) else "it is not one"
        return "that was given as text", NAMED_FILE.sub("a file that it names does not exist", reason)
    if not os.path.exists(os.path.expanduser(kubeconfig)):
        return "that was given", "no file has that name"
    return kubeconfig, "it is not one" if isinstance(error, MISSHAPEN) else str(error)


def _connection_problem(address: str, error: Exception) -> str:
    """Return a sentence that says why the server at `address` gave no answer, and what to do.

    urllib3 wraps the cause, and the Kubernetes client turns TLS errors into its own.
    """
    if untrusted := UNTRUSTED.search(str(error)):
        return (
            f"the certificate of the API server at {address} is not trusted ({untrusted['why']}); "
            "the kubeconfig's server and certificate-authority must be that cluster's"
        )
    if isinstance(error, ApiException) or isinstance(_innermost(error), ssl.SSLError):
        return (
            f"no TLS connection with the API server at {address} ({_describe_cause(error)}); "
            "check the kubeconfig's certificates"
        )
    return (
        f"the API server at {address} does not answer ({_describe_cause(error)}); "
        "check that the cluster runs and can be reached from here, or choose another context"
    )


def _describe_cause(error: Exception) -> str:
    """Return the error that caused `error`, in a few words."""
    inner = _innermost(error)
    if isinstance(inner, urllib3.exceptions.ConnectTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S} s"
    if isinstance(inner, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return " ".join(str(inner).split())


def _innermost(error: BaseException) -> BaseException:
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, BaseException) else error.__cause__
    return _innermost(inner) if inner is not None and inner is not error else error

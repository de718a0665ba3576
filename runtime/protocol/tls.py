"""Mutual TLS on the connections between the gateway and its ranks: each end proves its identity.

A folder has a process's `tls.crt`, `tls.key` and `ca.crt`. cert-manager writes them into a Secret, `tidemill up` into
its own folder. The certificate's one URI is the process's identity, as in SPIFFE. The launch file names the identity
that the other end must have. The files are read again when they change, so a renewed certificate needs no restart: the
next connection uses it.

TLS 1.3 is required, and sessions are not resumed, so each new connection shows a valid certificate. Each end closes a
connection when the other end's certificate has expired. Before that, a rank opens a new connection
(`worker/renewal.py`). Certificates are short-lived, so none are revoked. `stacks/local/certificates.py` and
cert-manager make them.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime.errors import RuntimeFailure, WireError

__all__ = [
    *("HANDSHAKE_S", "SHUTDOWN_S", "Credentials", "Impostor", "Trust", "call", "identity"),
    *("seconds_valid", "explain_tls_failure"),
]

HANDSHAKE_S = 5.0  # assumed: as long as a rank may take for its Hello
SHUTDOWN_S = 1.0  # assumed: a living peer answers the end at once
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
DATE_ERRORS = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and _CERT_HAS_EXPIRED of OpenSSL's x509_vfy.h
PURPOSES = {"server": ssl.PROTOCOL_TLS_SERVER, "client": ssl.PROTOCOL_TLS_CLIENT}

_Stamps = tuple[tuple[int, int], ...]


class Impostor(WireError):
    """The other end's certificate is valid, but of another identity."""


class Credentials:
    """The certificate, key and authority of one process, as they are now in `folder`."""

    def __init__(self, folder: Path, side: Literal["server", "client"]) -> None:
        """Read the files in `folder`. Raises RuntimeFailure if they cannot be used."""
        self._folder, self._side = folder, side
        try:
            self._stamps, self._context = self._look(), self._read()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise RuntimeFailure(f"cannot use the certificate in {folder}: {explain_tls_failure(error)}") from None

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for a new connection.

        While renewed files are unreadable or incomplete, it is the context made from the earlier files.
        """
        try:
            seen = self._look()
            if seen != self._stamps:
                self._context = self._read()
                self._stamps = seen
        except (OSError, ValueError):
            pass
        return self._context

    def _look(self) -> _Stamps:
        stats = [(self._folder / name).stat() for name in (CERTIFICATE, KEY, AUTHORITY)]
        return tuple((each.st_mtime_ns, each.st_ino) for each in stats)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(PURPOSES[self._side])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # an identity is compared instead: pods have no lasting names
        context.verify_mode = ssl.CERT_REQUIRED
        if self._side == "server":
            context.num_tickets = 0  # a resumed session would outlive its certificate
        context.load_verify_locations(self._folder / AUTHORITY)
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)
        return context


@dataclass(frozen=True)
class Trust:
    """A process's own credentials, and the identity (or a prefix of identities) that the other end must have."""

    credentials: Credentials
    peer: str


async def call(host: str, port: int, trust: Trust | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and return (reader, writer). With a `trust`, check the other end's identity.

    Raises OSError if there is no connection, and Impostor if the other end has another identity.
    """
    if trust is None:
        return await asyncio.open_connection(host, port)
    reader, writer = await asyncio.open_connection(
        host, port, ssl=trust.credentials.context, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S
    )
    if identity(writer) != trust.peer:
        writer.transport.abort()
        raise Impostor("the certificate of the one that answers is not the gateway's")
    return reader, writer


def identity(writer: asyncio.StreamWriter) -> str | None:
    """Return the identity that the other end has proven: the one URI of its certificate. None if there is no TLS."""
    certificate = writer.get_extra_info("peercert") or {}
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    return uris[0] if len(uris) == 1 else None


def seconds_valid(writer: asyncio.StreamWriter) -> float | None:
    """Return for how many seconds the other end's certificate is still valid; None without TLS."""
    certificate = writer.get_extra_info("peercert")
    return ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time() if certificate else None


def explain_tls_failure(error: Exception) -> str:
    """Return in a few words why a handshake failed or files cannot be used, without OpenSSL's file and line.

    If a date is wrong, name the machine whose clock was used: clocks are wrong more often than certificates.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        clock = time.strftime(" by this machine's clock, which shows %Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return f"{error.verify_message}{clock if error.verify_code in DATE_ERRORS else ''}"
    if isinstance(error, ssl.SSLError) and error.reason:
        clock = " by the other end's clock" if error.reason.endswith("CERTIFICATE_EXPIRED") else ""
        return error.reason.replace("_", " ").lower() + clock
    return getattr(error, "strerror", None) or str(error) or "the other end closed the connection"

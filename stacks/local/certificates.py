"""Certificates for the processes of a deployment on this machine, issued at its start and renewed while it runs.

The authority's key is only in the supervisor's memory, so nobody can issue another certificate, and it ends with the
deployment. Each process has a folder that this user alone can read. Its key stays; a new certificate for it is written
over the old one, and the process reads it before its next connection (`runtime/protocol/tls.py`).

Clocks may be set back or forward while a deployment runs. So the authority is valid at any time, and a certificate is
valid as long before its issue as after it. All are renewed once the clock is before their issue, or long after it.

In a cluster, cert-manager or another issuer makes the certificates.
"""

import datetime
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stacks.local.layout import Identity

__all__ = ["Certificates", "now"]

LIFETIME = datetime.timedelta(hours=24)  # assumed: a stolen certificate is of use for a day at most
RENEWED_AFTER = datetime.timedelta(hours=8)  # assumed: a machine may sleep for a night
UTC = datetime.UTC
BEGIN = datetime.datetime(1950, 1, 1, tzinfo=UTC)  # the first date that fits (RFC 5280, 4.1.2.5.1)
NO_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # the date that means no end (RFC 5280, 4.1.2.5)
PURPOSES = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}


def now() -> datetime.datetime:
    """Return the clock's time, against which certificates are checked."""
    return datetime.datetime.now(UTC)


class Certificates:
    """The certificates of `identities`, and the authority that issues them."""

    def __init__(self, identities: Iterable[Identity], at: datetime.datetime) -> None:
        """Issue certificates at the time `at`, and write every process's files.

        Raises OSError if they cannot be written.
        """
        self._key = _new_key()
        self._authority = _authority(self._key)
        self._holders = [_Holder(each, _new_key()) for each in identities]
        self._issue(at)

    def renew_if_due(self, at: datetime.datetime) -> None:
        """Issue all certificates anew if they are due at the time `at`, if the clock was set, or if a file is gone.

        Raises OSError if the files cannot be written.
        """
        is_due = not self._issued <= at < self._issued + RENEWED_AFTER
        if is_due or not all(path.exists() for holder in self._holders for path in holder.paths):
            self._issue(at)

    def _issue(self, at: datetime.datetime) -> None:
        for holder in self._holders:
            certificate = _certificate(holder, self._authority, self._key, at)
            holder.identity.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            contents = (_certificate_pem(self._authority), _key_pem(holder.key), _certificate_pem(certificate))
            for path, content in zip(holder.paths, contents, strict=True):
                _write(path, content)
        self._issued = at


@dataclass(frozen=True)
class _Holder:
    identity: Identity
    key: ec.EllipticCurvePrivateKey

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        """The paths of three files: the authority's certificate, this process's key, and this process's certificate."""
        folder = self.identity.folder
        return folder / "ca.crt", folder / "tls.key", folder / "tls.crt"


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("Tidemill on this machine")
    return (
        _builder(name, name, key.public_key(), BEGIN, NO_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    holder: _Holder, authority: x509.Certificate, signer: ec.EllipticCurvePrivateKey, at: datetime.datetime
) -> x509.Certificate:
    """Return a certificate with the holder's identity as its only URI, valid for the holder's purpose only."""
    identity, issuer = holder.identity, x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        _builder(_name("Tidemill"), authority.subject, holder.key.public_key(), at - LIFETIME, at + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([PURPOSES[identity.side]]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, as one step: a reader sees either the old content or the new."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    partial.replace(path)

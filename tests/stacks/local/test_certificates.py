"""The certificates that `tidemill up` makes for the processes of a deployment."""

import datetime
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from stacks.local.certificates import LIFETIME, NO_END, RENEWED_AFTER, Certificates
from stacks.local.layout import Identity

NOON = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def identities(tmp_path):
    gateway = Identity("spiffe://test/gateway", "server", tmp_path / "tls" / "gateway")
    return [gateway, Identity("spiffe://test/unit/a", "client", tmp_path / "tls" / "a")]


def certificate(folder, name="tls.crt"):
    return x509.load_pem_x509_certificate((folder / name).read_bytes())


def test_each_certificate_has_one_identity_and_is_issued_by_the_authority(identities):
    """Its one URI is whose it is; the authority itself may issue no other authority."""
    Certificates(identities, NOON)

    for each in identities:
        own, authority = certificate(each.folder), certificate(each.folder, "ca.crt")
        own.verify_directly_issued_by(authority)
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.UniformResourceIdentifier) == [each.uri]
        assert len(list(names)) == 1
        assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_only_this_user_can_read_them_and_the_authoritys_key_lies_nowhere(identities, tmp_path):
    """Whoever has the authority's key could pose as anybody."""
    Certificates(identities, NOON)

    for path in (tmp_path / "tls").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    keys = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    own = [serialization.load_pem_private_key(each, None).public_key().public_numbers() for each in keys]
    authority = certificate(identities[0].folder, "ca.crt").public_key().public_numbers()
    assert len(own) == len(identities)
    assert authority not in own


def test_they_are_renewed_long_before_they_expire_and_keep_their_keys(identities):
    """A process may read its files at any moment: key and certificate fit each other at all times."""
    certificates = Certificates(identities, NOON)
    folder = identities[0].folder
    key, first = (folder / "tls.key").read_bytes(), certificate(folder)

    certificates.renew_if_due(NOON + RENEWED_AFTER - SECOND)
    assert certificate(folder) == first
    certificates.renew_if_due(NOON + RENEWED_AFTER)

    assert certificate(folder).not_valid_after_utc == NOON + RENEWED_AFTER + LIFETIME
    assert certificate(folder).public_key() == first.public_key()
    assert (folder / "tls.key").read_bytes() == key
    assert certificate(folder, "ca.crt").not_valid_after_utc == NO_END


HOURS = st.integers(-24 * 365 * 50, 24 * 365 * 50) | st.sampled_from([-24, -1, 1, 24])


@given(st.lists(HOURS, min_size=1, max_size=5))
def test_a_clock_that_is_set_leaves_certificates_that_are_valid(hours):
    """Whatever it shows after each step: the next look renews what is not valid then, or not for long any more."""
    with tempfile.TemporaryDirectory() as folder:
        identity = Identity("spiffe://test/gateway", "server", Path(folder))
        certificates = Certificates([identity], NOON)
        for each in hours:
            at = NOON + each * 3600 * SECOND
            certificates.renew_if_due(at)

            assert certificate(identity.folder).not_valid_before_utc < at
            assert at + LIFETIME - RENEWED_AFTER < certificate(identity.folder).not_valid_after_utc <= at + LIFETIME
            assert certificate(identity.folder, "ca.crt").not_valid_before_utc < at < NO_END


def test_a_clock_that_is_set_back_by_hours_leaves_them_valid_without_a_look(identities):
    """The supervisor may be stopped meanwhile, or the disk full."""
    Certificates(identities, NOON)

    assert certificate(identities[0].folder).not_valid_before_utc <= NOON - 23 * 3600 * SECOND


def test_files_that_somebody_removed_are_written_again(identities, tmp_path):
    """A process that starts later needs its own; those that run have theirs, which fit it."""
    certificates = Certificates(identities, NOON)
    key = (identities[0].folder / "tls.key").read_bytes()
    shutil.rmtree(tmp_path / "tls")
    certificates.renew_if_due(NOON + SECOND)

    assert (identities[0].folder / "tls.key").read_bytes() == key
    for each in identities:
        certificate(each.folder).verify_directly_issued_by(certificate(each.folder, "ca.crt"))

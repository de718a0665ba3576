"""A process's certificate, key and authority are read from its folder when they change."""

import re
import ssl

import pytest

from runtime.errors import RuntimeFailure
from runtime.protocol.tls import Credentials, explain_tls_failure
from stacks.local.certificates import Certificates, now
from stacks.local.layout import Identity


@pytest.fixture
def folder(tmp_path):
    Certificates([Identity("spiffe://test/unit/a", "client", tmp_path / "a")], now())
    return tmp_path / "a"


def test_files_that_stay_are_not_read_again(folder):
    """Files that have not changed are not read again."""
    credentials = Credentials(folder, "client")

    assert credentials.context is credentials.context


def test_files_that_are_half_renewed_change_nothing_until_they_are_whole(folder, tmp_path):
    """A new certificate is not used before its key has come."""
    credentials = Credentials(folder, "client")
    before = credentials.context
    Certificates([Identity("spiffe://test/unit/a", "client", tmp_path / "new")], now())
    for name, is_whole in (("tls.crt", False), ("ca.crt", False), ("tls.key", True)):
        (folder / name).write_bytes((tmp_path / "new" / name).read_bytes())
        assert (credentials.context is not before) == is_whole


def test_files_that_are_gone_change_nothing(folder):
    """Files that are missing for a moment change nothing."""
    credentials = Credentials(folder, "client")
    before = credentials.context
    (folder / "tls.crt").unlink()

    assert credentials.context is before


@pytest.mark.parametrize(("name", "content"), [("tls.crt", None), ("tls.key", b"no key"), ("ca.crt", b"")])
def test_files_that_cannot_be_used_are_said_at_the_start(folder, name, content):
    """A missing or unreadable file is one sentence at the start, with the folder."""
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)

    with pytest.raises(RuntimeFailure, match=f"cannot use the certificate in {folder}: .+"):
        Credentials(folder, "server")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (9, r"it is not valid by this machine's clock, which shows \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        (10, r"it is not valid by this machine's clock, which shows .+Z"),
        (18, "it is not valid"),
    ],
)
def test_a_certificate_that_is_refused_for_its_dates_names_the_clock(code, said):
    """An error of dates names the clock that was used."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "it is not valid"

    assert re.fullmatch(said, explain_tls_failure(error))


def test_a_handshake_that_the_other_end_breaks_off_has_a_reason():
    """A handshake that the other end breaks off has a reason, although the system gives none."""
    assert explain_tls_failure(ConnectionResetError()) == "the other end closed the connection"

"""Make text safe to print: escape control characters for a terminal, and remove secrets from addresses.

Every message goes through this, since it may quote a file or a pod.
"""

import re

__all__ = ["printable", "without_passwords", "without_secrets"]

# An @, in other spellings too, but not the one before an image digest.
AT = "@(?!sha256:)|%40|\N{FULLWIDTH COMMERCIAL AT}|\N{SMALL COMMERCIAL AT}"
# An address up to the end of its user and password. An address that was parsed as a path has only one slash.
ADDRESS = re.compile(rf"\b([a-z][a-z0-9+.-]*:/+)\S*(?:{AT})", re.IGNORECASE)
QUERY = re.compile(r"\b(https?:/+[^\s?#]*)[?#][^\s),]+", re.IGNORECASE)


def printable(text: str) -> str:
    r"""Return `text` with unprintable characters escaped, line ends included: ESC becomes `\x1b`."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def without_passwords(text: str) -> str:
    """Return a message without the user, password, query and fragment of any address in it."""
    return QUERY.sub(r"\1", ADDRESS.sub(r"\1", text))


def without_secrets(url: str) -> str:
    """Return an address without its user, password, query and fragment, also one that is malformed.

    An @ after the first ? or # may end a malformed password or belong to the query: such an address is not shown.
    """
    scheme = next((each for each in ("https://", "http://") if url.startswith(each)), "")
    shown, *rest = re.split("[?#]", url.removeprefix(scheme), maxsplit=1)
    return scheme + ("..." if any(re.search(AT, each) for each in rest) else re.split(AT, shown)[-1])

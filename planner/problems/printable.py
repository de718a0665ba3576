"""Make text safe to print: escape control characters for a terminal, and remove secrets from addresses.

Every message goes through this, since it may quote a file or a pod.
"""

import re

# An @, in other spellings too, but not the one before an image digest.
AT = "@(?!sha256:)|%40|\N{FULLWIDTH COMMERCIAL AT}|\N{SMALL COMMERCIAL AT}"
# Each pattern takes time in proportion to the text's length, because text from files or clusters may be long.
WORD = re.compile(r"\S+")
SCHEME_END = re.compile(r"(?<=[a-z0-9+.-]):/+", re.IGNORECASE)  # one slash in an address that was parsed as a path
HTTP = re.compile("https?:/", re.IGNORECASE)
QUERY = re.compile(r"[?#][^\s),]+")


def printable(text: str) -> str:
    r"""Return `text` with unprintable characters escaped, line ends included: ESC becomes `\x1b`."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def without_passwords(text: str) -> str:
    """Return a message without the user, password, query and fragment of any address in it."""
    return WORD.sub(lambda word: _without_secrets_of_address(word[0]), text)


def _without_secrets_of_address(word: str) -> str:
    shown = _without_user(word)
    return QUERY.sub("", shown) if HTTP.search(word) else shown


def _without_user(word: str) -> str:
    """Return `word` without the user and password of an address, which are all between its scheme and the last @."""
    scheme, ats = SCHEME_END.search(word), list(re.finditer(AT, word))
    if scheme is None or not ats or ats[-1].start() < scheme.end():
        return word
    return word[: scheme.end()] + word[ats[-1].end() :]


def without_secrets(url: str) -> str:
    """Return an address without its user, password, query and fragment, even if it is malformed.

    An @ after the first ? or # may end a malformed password or belong to the query. Such an address becomes `...`.
    """
    scheme = next((each for each in ("https://", "http://") if url.startswith(each)), "")
    shown, *rest = re.split("[?#]", url.removeprefix(scheme), maxsplit=1)
    return scheme + ("..." if any(re.search(AT, each) for each in rest) else re.split(AT, shown)[-1])

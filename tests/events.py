"""The events of a stream that the gateway sends (WHATWG HTML 9.2), as a client reads them line by line."""

from collections.abc import Iterable, Iterator

__all__ = ["DONE", "data_of"]

DONE = "[DONE]"  # the data of a whole stream's last event


def data_of(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield what each event holds, DONE included. Comments, which say that an answer is still waited for, are none."""
    for line in lines:
        said = line.decode().strip()
        if said and not said.startswith(":"):
            yield said.removeprefix("data: ")

"""Look up report rows by section and name, and format them for people. Nothing is computed here."""

from collections.abc import Iterable

from planner.facts.quantities import US_PER_MS
from planner.plan.row import Row

# unit -> (smallest number that is written without decimals, number of decimals of smaller ones)
DECIMALS = {"tokens/s": (100, 1), "ms": (1000, 1), "us": (0, 0), "hours": (1000, 2), "": (1000, 2)}
FORMS = {"share": ".1%", "ratio": ".3f", "USD per million tokens": ",.4f"}
PREFIXES = {1e12: "TB", 1e9: "GB", 1e6: "MB"}
ALMOST_ALL = 0.999
MANY = 10_000_000  # numbers from here on are shown in millions


class Report:
    """A plan's report rows in order, with lookup by section and name."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._found = {(row.section, row.name): row for row in self.rows}
        self._sections = [section.split(".") for section in dict.fromkeys(row.section for row in self.rows)]

    def find(self, section: str, name: str) -> Row | None:
        """Return the row `name` of `section` or None.

        `name` may begin with subsections, as in `slo.ttft_ms.promised`.
        """
        below, _, last = name.rpartition(".")
        return self._found.get((f"{section}.{below}" if below else section, last))

    def text(self, section: str, name: str) -> str:
        """Return the formatted value of a row, or an empty string if there is no such row."""
        row = self.find(section, name)
        return "" if row is None else format_value(row)

    def value_and_range(self, section: str, name: str) -> tuple[str, str]:
        """Return (a row's formatted value, its range in parentheses). Both are empty if there is no such row."""
        row = self.find(section, name)
        low, high = ("", "") if row is None else format_range(row)
        return self.text(section, name), f"({low} to {high})" if low else ""

    def keys(self, pattern: str) -> list[tuple[str, ...]]:
        """Return what the stars of `pattern` stand for in section names: [(prefill,), (decode,)] for `phases.*`."""
        parts, found = pattern.split("."), []
        for section in self._sections:
            pairs = list(zip(parts, section, strict=False))
            if len(parts) == len(section) and all(part in ("*", of_section) for part, of_section in pairs):
                found.append(tuple(of_section for part, of_section in pairs if part == "*"))
        return found

    def section_rows(self, section: str) -> list[Row]:
        """Return all rows of one section, in order."""
        return [row for row in self.rows if row.section == section]


def format_value(row: Row) -> str:
    """Return a row's value as text, formatted by its unit."""
    return _format_number(row.value, row.unit)


def format_range(row: Row) -> tuple[str, str]:
    """Return (low, high), the formatted ends of a row's range. Both are empty if the row has no range."""
    low, high = ("" if each is None else _format_number(each, row.unit) for each in (row.low, row.high))
    return low, high


def format_microseconds(us: float) -> str:
    """Return a time as text, in µs below a millisecond and in ms from there on."""
    return f"{us / US_PER_MS:,.1f} ms" if us >= US_PER_MS else f"{us:,.1f} µs"


def _format_number(value: float | str, unit: str) -> str:
    """Return a number as text, formatted by its unit. A share below 1 is never shown as 100 %."""
    if isinstance(value, str):
        return value
    if unit in ("bytes", "bytes/s"):
        return _format_bytes(value) + unit.removeprefix("bytes")
    if unit == "share" and ALMOST_ALL < value < 1:
        return f">{ALMOST_ALL:.1%}"
    if isinstance(value, int) or value >= MANY:
        return f"{value / 1e6:,.0f}M" if value >= MANY else f"{value:,}"
    sign = "$" if unit.startswith("USD") else ""
    if unit in FORMS:
        return f"{sign}{value:{FORMS[unit]}}"
    whole_from, decimals = DECIMALS.get(unit, (10, 2))
    digits = 0 if value == round(value) or value >= whole_from else decimals
    return f"{sign}{value:,.{digits}f}"


def _format_bytes(value: float) -> str:
    """Return a number of bytes as text, in the largest unit of B, MB, GB and TB that is not larger than the number."""
    size, unit = next(((value / size, unit) for size, unit in PREFIXES.items() if value >= size), (value, "B"))
    return f"{size:,.1f} {unit}" if unit != "B" else f"{size:,.0f} B"

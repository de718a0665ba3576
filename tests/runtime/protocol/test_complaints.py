"""A caller that opens a port again and again cannot fill the log."""

from runtime.protocol.complaints import MAX_LINE, MAX_LINES, PERIOD_S, Complaints


def test_a_flood_is_said_up_to_a_number_and_then_counted():
    """After too many lines in a minute they are counted, and the next minute's first line says how many."""
    said, now = [], [0.0]
    complain = Complaints(said.append, lambda: now[0])
    for number in range(MAX_LINES + 1_000):
        complain(f"line {number}")
    of_first_minute = list(said)
    now[0] += PERIOD_S
    complain("another")

    assert of_first_minute == [f"line {number}" for number in range(MAX_LINES)]
    assert said[MAX_LINES:] == ["1,000 more lines of this kind were left out", "another"]


def test_what_is_rare_is_all_said():
    """Rare complaints are all logged, without a count."""
    said, now = [], [0.0]
    complain = Complaints(said.append, lambda: now[0])
    for number in range(3 * MAX_LINES):
        complain(str(number))
        now[0] += 2 * PERIOD_S / MAX_LINES

    assert said == [str(number) for number in range(3 * MAX_LINES)]


def test_a_line_stays_one_short_line():
    """A stranger's megabytes are cut, and its line ends and colours escaped."""
    said = []
    complain = Complaints(said.append)
    complain("x" * 10_000_000)
    complain("\n" * MAX_LINE)
    complain("a\r\nWARNING all is lost\x1b[31m\u2028\u00e9")
    complain("y" * MAX_LINE)

    assert said[0] == "x" * (MAX_LINE - 3) + "..."
    assert (said[1][:4], len(said[1])) == ("\\n\\n", MAX_LINE)
    assert said[2] == "a\\r\\nWARNING all is lost\\x1b[31m\\u2028\u00e9"
    assert said[3] == "y" * MAX_LINE

"""What a newcomer types and gives: a wrong option, another kind of file, a file without end."""

import io
import json
import sys
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import main
from planner.command.printed import print_colored
from planner.facts.digest import pretty_json
from planner.facts.loads import read_loads
from planner.plan.plan import document_digest
from planner.plan.user_input import read_input
from planner.problems.printable import without_passwords
from planner.report.text import ALARMS
from planner.spec.resolved import ResolvedSpec


@pytest.fixture
def error_of(capsys):
    """A function: the only error of a call, as JSON, after it has exited with 2."""

    def call(*words):
        status = main([*map(str, words), "--format", "json"])
        (error,) = json.loads(capsys.readouterr().out)["errors"]
        assert status == 2
        return error

    return call


@pytest.fixture(scope="module")
def plan_text(plan_of):
    """The right spec's plan, as `-o` writes it."""
    return pretty_json(plan_of().as_json())


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["plan", "x.yaml", "--previos", "p.json"], "did you mean --previous?"),
        (["experts", "x.npy", "--gpus", "1", "--nodes", "1", "--slotspergpu=2"], "did you mean --slots-per-gpu?"),
        (["render", "x.yaml", "-o", "out", "--verbose"], "see tidemill render --help"),
        (["validate", "x.yaml", "-q"], "see tidemill validate --help"),
        (["render", "x.yaml", "--output", "out"], "see tidemill render --help"),
        (["plan", "x.yaml", "y.yaml"], "see tidemill plan --help"),
    ],
)
def test_an_unknown_option_is_answered_by_its_command(error_of, words, fix):
    """With the option that was meant, or else with the command's own help."""
    error = error_of(*words)

    assert (error["rule"][:4], error["fix"], error["file"]) == ("S900", fix, f"tidemill {words[0]}")


def test_the_version_is_the_installed_one(capsys):
    """On stdout, with exit status 0."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert (ended.value.code, capsys.readouterr().out) == (0, f"tidemill {metadata.version('tidemill')}\n")


class Stderr(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, True), (False, False)])
def test_progress_is_shown_on_terminals_alone(is_terminal, shown, spec_file, monkeypatch, capsys):
    """What is planned stands on a terminal's stderr while it takes; elsewhere, and on stdout, it never does."""
    stderr = Stderr(is_terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")

    assert main(["plan", str(spec_file())]) == 0
    assert ("planning" in stderr.getvalue()) == shown
    assert "planning" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["validate", "/dev/zero"],
        ["render", "/dev/zero", "-o", "out"],
        ["plan", "spec.yaml", "--previous", "/dev/zero"],
        ["experts", "/dev/zero", "--gpus", "2", "--nodes", "1"],
        ["experts", "loads.json", "--gpus", "2", "--nodes", "1", "--previous", "/dev/zero"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_without_end_is_refused(error_of, words, spec_folder, spec_file, monkeypatch):
    """Whatever it is given for: it is read up to what any such file needs, and no further."""
    spec_file()
    monkeypatch.chdir(spec_folder)
    error = error_of(*words)

    assert error["reason"] in ("it has more than 64 MiB", "it has more than 256 MiB")


@pytest.mark.parametrize(("line", "text"), [(4, "  config: /dev/zero"), (26, "  file: /dev/zero")])
def test_a_spec_may_name_no_file_without_end(with_line, spec_file, error_of, line, text):
    """Neither as the model's config nor as loads."""
    lines = with_line(line, text).replace("  seed: 0\n", "" if line == 26 else "  seed: 0\n")

    assert error_of("validate", spec_file(lines, "endless.yaml"))["reason"].startswith("it has more than")


def test_a_spec_of_many_megabytes_is_refused_before_it_is_parsed(spec_file, error_of):
    """S101: no inventory is that long."""
    error = error_of("validate", spec_file("a: 1\n" * 2_000_000, "long.yaml"))

    assert (error["rule"][:4], error["reason"]) == ("S101", "it has more than 8 MiB")


ESCAPE = "\x1b]0;owned\x07\u202e"


def test_no_file_writes_to_the_terminal(spec_text, spec_folder, spec_file, capsys):
    """What a file holds is shown with its control characters written out, in a plan and in a mistake."""
    name = f"config{ESCAPE}.json"
    (spec_folder / name).write_text((spec_folder / "config.json").read_text())
    right = spec_text.replace("config: config.json", f"config: {json.dumps(name)}")
    main(["plan", str(spec_file(right, "odd.yaml"))])
    main(["plan", str(spec_file(right.replace("nodes: 3", "nodes: 1"), f"odd{ESCAPE}.yaml"))])
    shown = "".join(capsys.readouterr())

    assert shown.count(r"\x1b]0;owned\x07\u202e") == 2
    assert all(line.isprintable() for line in shown.splitlines())


def test_no_name_of_a_file_writes_to_the_terminal(spec_file, spec_text, tmp_path, capsys):
    """Names that are printed after the work is done are escaped as those in mistakes are."""
    spec, plan = spec_file(spec_text, f"a{ESCAPE}.yaml"), tmp_path / f"{ESCAPE}.json"
    calls = [
        ["validate", spec],
        ["plan", spec, "-o", plan, "--export", "sglang"],
        ["report", spec, "-o", f"{plan}.html"],
    ]
    calls += [["render", spec, "-o", tmp_path / f"d{ESCAPE}"]]
    calls += [["init", "--model", "deepseek-r1", "--gpu", "h200", "--nodes", "1", "-o", tmp_path / f"i{ESCAPE}"]]
    statuses = [main(list(map(str, call))) for call in calls]
    shown = "".join(capsys.readouterr())

    assert statuses == [0] * len(calls)
    assert shown.count(r"\x1b]0;owned\x07\u202e") >= len(calls)
    assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    "address",
    [
        "http://eve:hunter2@h/x",
        "http://eve:hun/hunter2@h",
        "http://eve:hunter2%40h",
        "http://eve:hunter2\uff20h/x?t=hunter2",
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("experts", "--from", "http://a", "-o", "x"),
        ("experts", "--gpus", "8", "--nodes", "1"),
        ("plan",),
        ("plan", "spec.yaml", "-o"),
        ("render", "spec.yaml", "-o"),
    ],
    ids=" ".join,
)
def test_no_message_repeats_a_password(words, address, spec_file, spec_text, spec_folder, monkeypatch, capsys):
    """Wherever an address stands among the arguments, and however its @ is spelt, in a text and in JSON."""
    spec_file(spec_text, "spec.yaml")
    monkeypatch.chdir(spec_folder)
    for more in ((), ("--format", "json")):
        main([*words, f"/dev/null/{address}" if words[-1] == "-o" and words[0] != "experts" else address, *more])
        shown = "".join(capsys.readouterr())
        assert shown
        assert "hunter2" not in shown


def test_a_reason_in_a_plan_does_not_write_to_the_terminal(plan_of, spec_text, tmp_path, capsys):
    """It tells why the runtime cannot run it in the plan's own words, which whoever sealed it chose."""
    document = plan_of(spec_text.replace("gpu: cpu", "gpu: mi300x")).as_json()
    (refusal,) = document["refusals"]
    message = refusal["message"].replace(refusal["reason"], ESCAPE)
    document |= {"refusals": [refusal | {"reason": ESCAPE, "message": message}], "why_not": [message]}
    document |= {"document_digest": document_digest(document)}
    (tmp_path / "plan.json").write_text(pretty_json(document))
    status = main(["render", str(tmp_path / "plan.json"), "-o", str(tmp_path / "out")])
    err = capsys.readouterr().err

    assert (status, r"\x1b]0;owned\x07\u202e" in err) == (3, True)
    assert all(line.isprintable() for line in err.splitlines())


@given(st.lists(st.sampled_from(["http", "oci", ":/", "/", "a", "?", "#", ")", ",", " "]), max_size=12).map("".join))
def test_addresses_lose_user_and_query(text):
    """Wherever an address stands in a text; the rest of the text stays."""
    shown = without_passwords(f"{text}http://eve:hunter2@h/x?t=hunter2 rest {text}")

    assert "hunter2" not in shown
    assert " rest " in shown
    assert without_passwords(shown) == shown


@pytest.mark.parametrize("piece", ["a:/", "http://", "a.b+", "http:/x?", "@"])
def test_long_texts_are_printed_at_once(piece):
    """A stranger's text may be as long as a file: a square of its length was minutes."""
    text = piece * 300_000

    assert len(without_passwords(text)) <= len(text)


def test_a_key_that_a_plan_has_twice_is_refused(plan_text, tmp_path, error_of):
    """S906: a reviewer may have read the one that does not count."""
    (tmp_path / "plan.json").write_text(plan_text.replace('"name": "river",', '"name": "lake",\n "name": "river",', 1))
    error = error_of("render", tmp_path / "plan.json", "-o", tmp_path / "out")

    assert (error["rule"][:4], error["reason"]) == ("S906", "an object in it has the same key twice")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
def test_a_plan_that_is_cut_off_is_a_torn_plan(plan_text, tmp_path, error_of, share):
    """S906, wherever it ends: nobody is told about YAML."""
    (tmp_path / "plan.json").write_text(plan_text[: int(len(plan_text) * share)])
    error = error_of("render", tmp_path / "plan.json", "-o", tmp_path / "out")

    assert (error["rule"][:4], error["reason"]) == ("S906", "it cannot be parsed as JSON")


def test_a_spec_in_json_with_a_key_too_many_is_a_spec(plan_of, spec_folder, error_of):
    """`units` belongs to a phase; at the top it is an unknown key, and not the mark of a plan."""
    spec = plan_of().as_json()["spec"]
    (spec_folder / "right.json").write_text(json.dumps(spec))
    (spec_folder / "stray.json").write_text(json.dumps(spec | {"units": 2}))
    error = error_of("validate", spec_folder / "stray.json")

    assert isinstance(read_input(spec_folder / "right.json"), ResolvedSpec)
    assert (error["rule"][:4], error["path"]) == ("S201", "units")


LOADTXT = "make it .npy: numpy.save('loads.npy', numpy.loadtxt('{}', delimiter='{}', ndmin=2))"


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("row.json", "[1, 2, 3, 4]", "give one layer as [1][4], a list in a list"),
        ("loads.csv", "1,2\n3,4\n", LOADTXT.format("loads.csv", ",")),
        ("loads.tsv", "1\t2\n", LOADTXT.format("loads.tsv", r"\t")),
    ],
)
def test_loads_in_another_form_are_told_the_way(tmp_path, error_of, name, content, fix, monkeypatch):
    """A single row, or a table: the fix says what makes a file that is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)

    assert error_of("experts", name, "--gpus", 1, "--nodes", 1)["fix"] == fix


def test_the_fixes_of_loads_in_another_form_are_right(tmp_path, monkeypatch):
    """Done as they say, loads are read."""
    import numpy

    monkeypatch.chdir(tmp_path)
    (tmp_path / "loads.csv").write_text("1,2\n3,4\n")
    finding = read_loads(tmp_path / "loads.csv", "loads.csv")
    exec(str(finding.fix).removeprefix("make it .npy: "), {"numpy": numpy})
    (tmp_path / "row.json").write_text("[[1, 2, 3, 4]]")

    assert read_loads(tmp_path / "loads.npy", "loads.npy").loads == ((1, 2), (3, 4))
    assert read_loads(tmp_path / "row.json", "row.json").loads == ((1, 2, 3, 4),)


@pytest.mark.parametrize(
    ("color", "environment", "is_terminal", "is_red"),
    [
        ("auto", {}, True, True),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {}, False, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_a_missed_promise_is_red_where_colours_are_wanted(monkeypatch, capsys, color, environment, is_terminal, is_red):
    """On a terminal, or when asked for; without the colours it is the same text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    text = "  TTFT  mean 1 s; slo.ttft_ms of 500 is missed, even at the\n        fastest speed\n"
    print_colored(text, color, red=ALARMS)
    shown = capsys.readouterr().out

    assert ("is \x1b[31mmissed, even at the\x1b[0m\n        \x1b[31mfastest speed\x1b[0m\n" in shown) == is_red
    assert shown.replace("\x1b[31m", "").replace("\x1b[0m", "") == text

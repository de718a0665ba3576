"""What `tidemill init` asks, refuses and writes."""

import io
import json
import os
import re
import shlex
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli import main
from planner.families import MODELS
from planner.guide.first_spec import Answers, Kubernetes, Slo, Traffic, first_spec
from planner.guide.questions import PLANNED_GPUS, QUESTIONS
from planner.rules.check import check_spec
from tests.docs.rooms_table import ROOT
from tests.terminal import Terminal

HAVE = ("--model", "deepseek-r1", "--gpu", "h200", "--nodes", "1")
NUMBERS = st.sampled_from(["1", "50", "2000.5", "10e9", "608e9"])
ANSWERS = st.builds(
    Answers,
    model=st.sampled_from(list(MODELS)),
    gpu=st.sampled_from(PLANNED_GPUS),
    nodes=st.sampled_from([1, 2, 22, 278]),
    gpus_per_node=st.integers(1, 64),
    traffic=st.none() | st.builds(Traffic, NUMBERS, NUMBERS),
    slo=st.none() | st.builds(Slo, st.sampled_from(["0.1", "50", "2e3"]), st.sampled_from(["0.1", "50", "2e3"])),
    kubernetes=st.builds(
        Kubernetes, st.sampled_from(["chat", "on", "0"]), st.sampled_from(["runtime", "r.example.com/a:1"])
    ),
)


class PlayedTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def answer_questions(monkeypatch, folder, *lines):
    """Call `init` on a terminal on which `lines` are typed; return its exit status and what it asked."""
    monkeypatch.chdir(folder)
    shown = PlayedTerminal()
    monkeypatch.setattr(sys, "stdin", PlayedTerminal("".join(f"{line}\n" for line in lines)))
    monkeypatch.setattr(sys, "stderr", shown)
    return main(["init"]), shown.getvalue()


@given(ANSWERS)
def test_every_answer_gives_a_valid_spec(answers):
    """No combination of answers breaks a rule of the spec."""
    text = first_spec(answers, Path("spec.yaml"))

    assert f"model: {answers.model}" in text or f"catalog: {answers.model}" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--model deepseek-r1 --gpu h800 --nodes 22 --traffic 10e9/2e9 --slo 2000/50", 0),
        ("--model deepseek-r1 --gpu h200 --nodes 1", 0),
        ("--model qwen3-30b-a3b --gpu gb200 --nodes 4 --kubernetes chat/registry.example.com/runtime:1", 0),
        ("--model deepseek-r1 --gpu h800 --nodes 22 --slo 0.1/0.1", 3),
    ],
)
def test_a_first_spec_plans_or_is_infeasible(words, status, tmp_path, monkeypatch, capsys):
    """From nothing to a plan in two commands; a cluster that cannot do it is refused with a fix."""
    monkeypatch.chdir(tmp_path)

    assert main(["init", *words.split()]) == 0
    assert main(["validate", "spec.yaml"]) in (0, status)
    assert main(["plan", "spec.yaml", "-o", "plan.json"]) == status
    assert Path("plan.json").exists() == (status == 0)
    assert "nearest" in capsys.readouterr().err or status == 0


def test_commands_of_the_page_are_calls_that_work(tmp_path, monkeypatch, capsys):
    """Each command of the page `start` that asks nothing exits with 0, in the order of the page."""
    page = (ROOT / "docs" / "start.md").read_text()
    calls = [each.split()[1:] for each in re.findall("^tidemill .*", page, re.M)]
    asking, planning, *others = calls
    monkeypatch.chdir(tmp_path)

    assert (asking, planning) == (["init"], ["plan", "spec.yaml"])
    assert [main(call) for call in others] == [0] * len(others)
    assert len(others) >= 3


def test_enter_takes_every_default(tmp_path, monkeypatch, capsys):
    """Six empty lines give a valid spec; each question shows its default."""
    status, asked = answer_questions(monkeypatch, tmp_path, *[""] * 6)

    assert status == 0
    assert [f"{each.words} [{each.default}]: " in asked for each in QUESTIONS] == [True] * 6
    assert capsys.readouterr().out == "spec.yaml: written; next: tidemill plan spec.yaml\n"
    assert check_spec(tmp_path / "spec.yaml").written.cluster.nodes == 1


def test_a_wrong_answer_is_asked_again(tmp_path, monkeypatch):
    """The question comes again after the reason, and the other answers are kept."""
    status, asked = answer_questions(
        monkeypatch, tmp_path, "deepseek-v3", "H800", "h800", "many", "22x8", "10e9/2e9", "none", "chat/image:1"
    )

    assert status == 0
    assert "did you mean h800? [S922]\nGPU (h800, " in asked
    assert asked.count("Nodes, and GPUs of each") == 2
    written = check_spec(tmp_path / "spec.yaml").written
    assert (written.cluster.gpu, written.cluster.nodes, written.kubernetes.namespace) == ("h800", 22, "chat")


@pytest.fixture
def asked(tmp_path):
    """A function: what `tidemill init` shows on a real terminal until it ends, and its exit status, after answers."""

    def asked(*answers):
        command = [Path(sys.executable).parent / "tidemill", "init"]
        with closing(Terminal(command, dict(os.environ), tmp_path)) as terminal:
            seen = 0
            for answer in answers:
                seen = terminal.wait_for(b"]: ", since=seen)
                terminal.type(f"{answer}\n".encode())
            return terminal.end(), terminal.written.decode()

    return asked


@pytest.mark.slow
def test_six_times_enter_on_a_terminal_lead_to_a_plan_without_warnings(asked, tmp_path):
    """The first spec that a newcomer gets is feasible, and nothing is wrong with it."""
    status, _ = asked(*[""] * 6)

    assert status == 0
    assert main(["plan", str(tmp_path / "spec.yaml"), "-o", str(tmp_path / "plan.json")]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["warnings"], plan["why_not"], plan["runnable"]) == ([], [], True)


def test_none_is_no_answer_about_kubernetes(tmp_path, capsys):
    """S922 says that a plan needs an image, and how to go on without a decision."""
    status = main(["init", *HAVE, "--kubernetes", "none", "-o", str(tmp_path / "spec.yaml")])
    said = capsys.readouterr().err

    assert (status, "[S922]" in said) == (2, True)
    assert "Kubernetes is required: a spec without an image gives a plan that cannot run" in said
    assert "leave it out for chat/" in said


WRONG = {
    "--model (deepseek-v9) must be in the catalog": ("deepseek-v9", "deepseek-r1"),
    "--gpu (h9000) must be in the catalog": ("h9000", "h800"),
    "--nodes (0x8) must be NODES or NODESxGPUS": ("0x8", "22x8"),
    "--traffic (lots) must be INPUT/OUTPUT tokens of a day": ("lots", "10e9/2e9"),
    "--slo (fast) must be TTFT/TPOT in milliseconds": ("fast", "4000/80"),
    "--kubernetes (Chat!) must be NAMESPACE/IMAGE": ("Chat!", "chat/registry.example.com/runtime-gpu:1"),
}


@pytest.mark.slow
def test_each_wrong_answer_is_asked_again_on_a_terminal(asked, tmp_path):
    """The reason stands between the wrong answer and the same question; then the spec has the right answers."""
    status, shown = asked(*(answer for answers in WRONG.values() for answer in answers))

    assert status == 0
    assert [reason for reason in WRONG if shown.count(reason) != 1] == []
    assert check_spec(tmp_path / "spec.yaml").written.cluster.gpu == "h800"


@pytest.mark.parametrize("model", MODELS)
def test_lines_are_short(model):
    """The longest line of a spec fits a screen."""
    text = first_spec(Answers(model, "h200", 20_000, 64, Kubernetes("chat", "image")), Path("spec.yaml"))

    assert max(map(len, text.splitlines())) <= 120


def test_an_end_of_the_input_writes_nothing(tmp_path, monkeypatch):
    """Ctrl-D exits with 2 and says which answer lacks."""
    status, asked = answer_questions(monkeypatch, tmp_path, "deepseek-r1")

    assert status == 2
    assert "--gpu is required; the input ended before" in asked
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_all_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    """Model, GPU and nodes must be given, and wrong answers are named with them."""
    monkeypatch.chdir(tmp_path)

    assert main(["init", "--gpu", "h80O", "--slo", "fast", "--format", "json"]) == 2
    paths = [each["path"] for each in json.loads(capsys.readouterr().out)["errors"]]
    assert paths == ["--model", "--gpu", "--nodes", "--slo"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    """A file, a folder or a link that leads nowhere stays as it is."""
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text("mine")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")

    assert [main(["init", *HAVE, "-o", name]) for name in ("spec.yaml", "folder", "link")] == [2, 2, 2]
    assert Path("spec.yaml").read_text() == "mine"
    assert not Path("nowhere").exists()
    assert capsys.readouterr().err.count("init overwrites nothing") == 3


@pytest.mark.parametrize(("gpu", "gpus_per_node"), [("gb200", 4), ("h200", 8)])
def test_a_node_has_the_usual_number_of_gpus(gpu, gpus_per_node, tmp_path, monkeypatch):
    """Nodes alone take the number of GPUs that nodes with this GPU have."""
    monkeypatch.chdir(tmp_path)

    assert main(["init", "--model", "deepseek-r1", "--gpu", gpu, "--nodes", "2"]) == 0
    assert check_spec(Path("spec.yaml")).written.cluster.gpus_per_node == gpus_per_node


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *(("--nodes", words) for words in ("0", "22x", "22x0", "22x65", "20001", "x8", "-1", "٢", "")),
        *(("--traffic", words) for words in ("10e9", "10e9/", "0/1", "1/1e19", "1e99/1", "nan/1", "010/1", "1/2/3")),
        *(("--slo", words) for words in ("0/50", "2000/-1", "inf/1", "fast")),
        *(("--kubernetes", words) for words in ("chat", "chat/", "Chat/image", "/image", "chat/a b", "chat/a\nb")),
    ],
)
def test_an_answer_of_another_form_is_refused(option, words, tmp_path, monkeypatch, capsys):
    """No answer is repaired: exit 2 with the form and an example."""
    monkeypatch.chdir(tmp_path)

    assert main(["init", *HAVE, f"{option}={words}"]) == 2
    assert f"tidemill init: {option}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_next_call_can_be_pasted(tmp_path, monkeypatch, capsys):
    """Whatever the file is called."""
    monkeypatch.chdir(tmp_path)
    main(["init", *HAVE, "-o", "a first; spec.yaml"])
    _, _, next_call = capsys.readouterr().out.partition("next: ")

    assert shlex.split(next_call) == ["tidemill", "plan", "a first; spec.yaml"]

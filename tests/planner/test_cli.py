"""The commands: what goes to stdout and stderr, and the exit status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from planner.cli import main
from planner.spec.schema import Spec
from planner.spec.section import Section
from planner.spec.yaml import read_document

SECTIONS = Section.__subclasses__()
SPECS = Path(__file__).parents[2] / "stacks" / "specs"


def test_validate_says_valid(spec_file, capsys):
    """A right spec: exit 0, one line."""
    path = spec_file()
    status = main(["validate", str(path)])

    assert (status, capsys.readouterr()) == (0, (f"{path}: valid\n", ""))


def test_validate_reports_mistakes_of_all_files(spec_file, with_line, capsys):
    """Two wrong files: exit 2, nothing on stdout, a line for each mistake."""
    paths = [str(spec_file(with_line(8, "  nodes: 0"), f"wrong{index}.yaml")) for index in (1, 2)]
    status = main(["validate", *paths])
    out, err = capsys.readouterr()

    assert (status, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == paths


def test_validate_reports_each_of_several_specs(spec_file, with_line, capsys):
    """With a valid spec beside a wrong one it exits with 2, and still calls the first valid."""
    right, wrong = str(spec_file()), str(spec_file(with_line(8, "  nodes: 0"), "wrong.yaml"))
    status = main(["validate", right, wrong])
    out, err = capsys.readouterr()

    assert (status, out, err.split(":")[0]) == (2, f"{right}: valid\n", wrong)


def test_validate_as_json_is_the_contracts(spec_file, with_line, capsys):
    """Each error has the keys that other programs rely on."""
    path = str(spec_file(with_line(20, "  ep_size: 8")))
    status = main(["validate", path, "--format", "json"])
    document = json.loads(capsys.readouterr().out)

    assert status == 2
    assert document == {
        "valid": False,
        "errors": [
            {
                "file": path,
                "path": "decode.ep_size",
                "line": 20,
                "column": 12,
                "value": 8,
                "rule": "S501 must divide num_physical_experts (36 = 32 + 4 redundant)",
                "reason": "every GPU of a unit holds the same number of experts",
                "fix": "nearest: redundant_experts: 8 or 0",
                "message": "decode.ep_size (8) must divide num_physical_experts (36 = 32 + 4 redundant); "
                "every GPU of a unit holds the same number of experts; nearest: redundant_experts: 8 or 0",
                "changes": [{"decode.redundant_experts": 8}, {"decode.redundant_experts": 0}],
            }
        ],
    }


def test_validate_does_not_place(spec_file, with_line):
    """Too few nodes is not a mistake: `plan` finds it, with its own exit status."""
    path = str(spec_file(with_line(8, "  nodes: 1")))

    assert (main(["validate", path]), main(["plan", path])) == (0, 3)


def test_validate_says_what_it_leaves_to_plan(spec_file, with_line, capsys):
    """The very problems with which plan refuses the spec, in both formats, and exit 0."""
    path = str(spec_file(with_line(8, "  nodes: 1")))
    main(["plan", path, "--format", "json"])
    refused = json.loads(capsys.readouterr().out)["errors"]

    assert main(["validate", path, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "errors": [], "left_to_plan": refused}
    assert main(["validate", path]) == 0
    assert capsys.readouterr().out == (f"{path}: valid\nleft to plan: {path}:8:10: {refused[0]['message']} [S701]\n")


def test_validate_says_what_render_will_refuse(spec_file, with_line, capsys, tmp_path):
    """The very problem, in both formats, and exit 0: the spec is right, and plans."""
    path = str(spec_file(with_line(5, "")))
    status = main(["render", path, "-o", str(tmp_path / "rendered"), "--format", "json"])
    refused = json.loads(capsys.readouterr().out)["errors"]

    assert status == 3
    assert main(["validate", path, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "errors": [], "left_to_render": refused}
    assert main(["validate", path]) == 0
    assert f"left to render, which refuses it: {path}:3:1: {refused[0]['message']} [S702]\n" in capsys.readouterr().out


def test_infeasible_as_json_is_the_same_document(spec_file, with_line, capsys):
    """Every command prints the errors JSON when it fails."""
    status = main(["plan", "--format=json", str(spec_file(with_line(8, "  nodes: 1")))])

    assert (status, [error["path"] for error in json.loads(capsys.readouterr().out)["errors"]]) == (
        3,
        ["cluster.nodes"],
    )


def test_plan_text_fits_a_terminal(spec_file, capsys):
    """At most 80 columns, with the digest that everything else refers to."""
    main(["plan", str(spec_file())])
    text = capsys.readouterr().out

    assert max(map(len, text.splitlines())) <= 80
    assert "sha256:" in text
    assert "redundant copies of them" in text


def test_plan_writes_json_whatever_is_printed(spec_file, tmp_path, capsys):
    """-o is JSON, equal to what --format json prints."""
    main(["plan", str(spec_file()), "-o", str(tmp_path / "plan.json")])
    capsys.readouterr()
    main(["plan", str(spec_file()), "--format", "json"])

    assert (tmp_path / "plan.json").read_text() == capsys.readouterr().out


def test_a_plan_that_cannot_be_written_is_exit_1(spec_file, tmp_path, capsys):
    """S904: the spec is right, the file system is not."""
    status = main(["plan", str(spec_file()), "-o", str(tmp_path / "none" / "plan.json")])

    assert (status, capsys.readouterr().err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-o", "none/plan.json"], "No such file or directory"),
        (["-o", "spec.yaml/plan.json"], "Not a directory"),
        (["-o", "."], "Is a directory"),
    ],
    ids=str,
)
def test_a_target_is_looked_at_before_the_search(spec_file, spec_folder, monkeypatch, capsys, words, reason):
    """S904 comes at once: nobody waits minutes for a plan that cannot be kept."""
    spec_file()
    monkeypatch.chdir(spec_folder)
    monkeypatch.setattr("planner.compiler.compile_plan", lambda *_: pytest.fail("it was planned"))
    monkeypatch.setattr("planner.experts.experts.make_map", lambda *_: pytest.fail("a map was made"))

    for command in (["plan", "spec.yaml"], ["experts", "loads.json", "--gpus", "2", "--nodes", "1"]):
        assert main([*command, *words]) == 1
        assert f" must be a writable file; {reason}; choose another [S904]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "target"),
    [
        *((["plan", "spec.yaml"], target) for target in ("spec.yaml", "./spec.yaml", "loads.json", "link", "nowhere")),
        *((["report", "spec.yaml"], target) for target in ("spec.yaml", "loads.json", "link")),
        *((["experts", "loads.json", "--gpus", "2", "--nodes", "1"], target) for target in ("loads.json", "nowhere")),
    ],
)
def test_no_result_replaces_what_the_call_reads_or_follows_a_link(
    spec_file, spec_text, spec_folder, tmp_path, monkeypatch, capsys, command, target
):
    """-o with the spec, with the loads that it names, or with a link, exits with 2 and writes nothing."""
    spec_file(spec_text.replace("  alpha: 1.01\n  seed: 0\n", "  file: loads.json\n"))
    (folder := tmp_path / "here").mkdir()
    for path in spec_folder.iterdir():
        if path.is_file() and path.name in ("spec.yaml", "config.json", "loads.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(folder)
    Path("mine").write_text("mine")
    Path("link").symlink_to("mine")
    Path("nowhere").symlink_to("not-there")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.exists()}
    status = main([*command, "-o", target])

    assert capsys.readouterr().err.count("[S904]") == 1
    assert (status, {path.name: path.read_bytes() for path in folder.iterdir() if path.exists()}) == (2, before)


def test_no_result_replaces_what_the_earlier_plan_names(
    spec_file, spec_text, spec_folder, tmp_path, monkeypatch, capsys
):
    """-o with the loads of OLD, by an absolute path or beside NEW, exits with 2; OLD's pipe is not opened."""
    (loads := tmp_path / "mine.json").write_bytes((spec_folder / "loads.json").read_bytes())
    seeded, old = "  alpha: 1.01\n  seed: 0\n", str(tmp_path / "old.json")
    assert main(["plan", str(spec_file(spec_text.replace(seeded, f"  file: {loads}\n"), "old.yaml")), "-o", old]) == 0
    new, before = str(spec_file(spec_text, "new.yaml")), loads.read_bytes()
    capsys.readouterr()
    for command in (["report", new], ["report", old], ["plan", new]):
        assert main([*command, "--previous", old, "-o", str(loads)]) == 2
        assert "[S904]" in capsys.readouterr().err

    assert loads.read_bytes() == before
    loads.unlink()
    os.mkfifo(loads)
    monkeypatch.setattr("planner.spec.named.read_loads", lambda *_: pytest.fail("it was opened"))
    assert main(["report", new, "--previous", old, "-o", str(loads)]) == 2
    assert loads.is_fifo()


def test_no_exported_map_replaces_what_the_call_reads(spec_file, spec_text, spec_folder, tmp_path, capsys):
    """The name of a map of --export may be that of the loads."""
    (loads := tmp_path / "plan.decode.sglang.json").write_bytes((spec_folder / "loads.json").read_bytes())
    spec = str(spec_file(spec_text.replace("  alpha: 1.01\n  seed: 0\n", f"  file: {loads}\n")))
    status = main(["plan", spec, "-o", str(tmp_path / "plan.json"), "--export", "sglang"])

    assert (status, "[S904]" in capsys.readouterr().err, loads.read_bytes()) == (
        2,
        True,
        (spec_folder / "loads.json").read_bytes(),
    )


def test_schema_is_json_schema(capsys):
    """It is right by the draft that it names, and the specs that ship are right by it."""
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(schema)
    for path in sorted(SPECS.glob("*.yaml")):
        Draft202012Validator(schema).validate(read_document(path).data)

    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert sorted(schema["required"]) == ["cluster", "model", "name", "version"]


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_has_a_description_and_valid_examples(section):
    """Examples pass the JSON schema, as in an editor, and the spec itself with the section's required fields."""
    fields = section.model_json_schema()["properties"]
    required = {name: field["examples"][0] for name, field in fields.items() if "default" not in field}
    described = [name for name, field in fields.items() if field.get("description") and field.get("examples")]
    for name, field in fields.items():
        for example in field["examples"]:
            Draft202012Validator(section.model_json_schema()).validate(required | {name: example})
            section.model_validate(required | {name: example})

    assert described == list(fields)


def test_no_section_of_the_schema_is_left_out():
    """The test above looks at every one of them."""
    assert {section.__name__ for section in SECTIONS} == Spec.model_json_schema()["$defs"].keys() | {"Spec"}


@pytest.mark.parametrize("command", ["validate", "render"])
def test_render_says_the_warnings_that_validate_says(command, spec_file, spec_text, tmp_path, capsys):
    """In both formats, of a spec and of its plan; W106 is of weights that no pod mounts."""
    text = spec_text.replace("gpu: cpu", "gpu: h100").replace("bundled:demo", "/models/river")
    spec, plan, folder = str(spec_file(text, "warned.yaml")), str(tmp_path / "plan.json"), str(tmp_path / "out")
    main(["plan", spec, "-o", plan])
    capsys.readouterr()
    for file in (spec, plan) if command == "render" else (spec,):
        words = [command, file] + (["-o", folder] if command == "render" else [])

        assert main(words) == 0
        assert "[W106]" in "".join(capsys.readouterr())
        assert main([*words, "--format", "json"]) == 0
        assert "W106" in [each["rule"][:4] for each in json.loads(capsys.readouterr().out)["warnings"]]


def test_render_writes_the_same_bytes_every_time(spec_file, tmp_path):
    """Two folders, and one folder twice: equal files."""
    for folder in ("a", "b", "b"):
        assert main(["render", str(spec_file()), "-o", str(tmp_path / folder)]) == 0

    assert _files(tmp_path / "a") == _files(tmp_path / "b")


def test_render_removes_its_stale_files_and_keeps_others(spec_file, with_line, tmp_path):
    """A unit that is gone leaves no manifest; a README that someone added stays."""
    folder = tmp_path / "out"
    main(["render", str(spec_file(with_line(19, "  units: 2", with_line(8, "  nodes: 5")))), "-o", str(folder)])
    (folder / "README.md").write_text("ours")
    assert (folder / "leaderworkerset-river-decode-1.yaml").exists()
    main(["render", str(spec_file()), "-o", str(folder)])

    assert sorted(name for name in _files(folder) if "decode-1" in name or name == "README.md") == ["README.md"]


def test_render_refuses_a_folder_that_it_did_not_write(spec_file, tmp_path, capsys):
    """S902: exit 2, and nothing in it is touched."""
    (tmp_path / "notes.txt").write_text("mine")
    status = main(["render", str(spec_file()), "-o", str(tmp_path)])

    assert (status, _files(tmp_path)) == (2, {"notes.txt": b"mine"})
    assert "[S902]" in capsys.readouterr().err


def test_render_refuses_a_foreign_file_in_its_way(spec_file, tmp_path, capsys):
    """S902: a file of its own folder that it did not write is not overwritten."""
    folder = tmp_path / "out"
    main(["render", str(spec_file()), "-o", str(folder)])
    (folder / "namespace-tidemill.yaml").write_text("mine")

    assert main(["render", str(spec_file()), "-o", str(folder)]) == 2
    assert "[S902]" in capsys.readouterr().err


def test_render_refuses_a_file_in_place_of_the_folder(spec_file, tmp_path, capsys):
    """S901: a file is not a folder."""
    (tmp_path / "out").write_text("")
    status = main(["render", str(spec_file()), "-o", str(tmp_path / "out")])

    assert (status, "[S901]" in capsys.readouterr().err) == (2, True)


def test_render_into_a_place_that_cannot_be_written_is_exit_1(spec_file, tmp_path, capsys):
    """S903: one sentence, whatever the file system says."""
    (tmp_path / "file").write_text("")
    status = main(["render", str(spec_file()), "-o", str(tmp_path / "file" / "out")])

    assert (status, "[S903]" in capsys.readouterr().err) == (1, True)


def test_render_refuses_what_the_runtime_cannot_run(spec_file, with_line, tmp_path):
    """Exit 3, and no folder."""
    status = main(["render", str(spec_file(with_line(7, "  gpu: mi300x"))), "-o", str(tmp_path / "out")])

    assert (status, (tmp_path / "out").exists()) == (3, False)


@pytest.mark.parametrize(
    "call", [[], ["simulate", "x"], ["plan"], ["plan", "a", "b"], ["validate", "x", "--format", "xml"]]
)
def test_a_wrong_call_is_exit_2(call, capsys):
    """S900: unknown commands, options and numbers of arguments, in one line."""
    status = main(call)
    out, err = capsys.readouterr()

    assert (status, out, err.count("\n"), "[S900]" in err) == (2, "", 1, True)


def test_a_wrong_call_as_json_is_json(capsys):
    """A program that asks for JSON gets it even where its call is wrong."""
    assert main(["simulate", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["rule"].startswith("S900")


def test_a_section_whose_name_is_a_number_is_unknown(capsys, spec_text, spec_file):
    """As any other name that no section has."""
    assert main(["validate", str(spec_file(f"{spec_text}8000: {{}}\n"))]) == 2
    assert "8000" in capsys.readouterr().err


@pytest.mark.slow
@given(data=st.data())
def test_mutated_specs_never_cause_a_traceback(data, spec_text, spec_file):
    """Bytes changed, cut and repeated anywhere: an exit status of the contract, whatever comes out."""
    content = bytearray(spec_text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 8)))
        content[start:end] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"[", b"{", b": ", b"- ", b"*a", b"9" * 30])
        )

    assert main(["plan", "--format", "json", str(spec_file(bytes(content)))]) in (0, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [True, False], ids=["a result", "a mistake"])
def test_a_reader_that_stops_early_is_no_traceback(spec_file, with_line, is_right):
    """`tidemill plan ... | head -1` has the status of what it found: head has seen enough, and nothing failed."""
    path = spec_file() if is_right else spec_file(with_line(8, "  nodes: 0"))
    with _command("plan", "--format", "json", str(path)) as process:
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (0 if is_right else 2, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "reason"), [("> /dev/full", "No space left on device"), (">&-", "stdout is closed")]
)
def test_a_result_that_nobody_can_read_is_no_traceback(spec_file, target, reason):
    """A full disk is one sentence and exit 1, and so is a stdout that the caller closed."""
    main_of = "from planner.cli import main; import sys; sys.exit(main())"
    command = f'exec "{sys.executable}" -c "{main_of}" validate "{spec_file()}" {target}'
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert done.stderr == f"tidemill: the result cannot be written: {reason}\n"


@pytest.mark.slow
def test_an_interrupt_is_no_traceback(tmp_path):
    """Ctrl-C while the command waits for its input."""
    os.mkfifo(tmp_path / "never.yaml")
    with _command("plan", str(tmp_path / "never.yaml")) as process, (tmp_path / "never.yaml").open("wb"):
        process.send_signal(signal.SIGINT)  # it has opened the pipe, and reads
        err = process.stderr.read()

    assert (process.returncode, err) == (130, b"")


def _command(*words):
    code = "import sys; from planner.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )


@pytest.mark.slow
def test_planning_imports_nothing_heavy(spec_file):
    """A pull-request job can plan without torch, numpy, pulumi, kubernetes or jinja2.

    Files of other families are not imported either, nor is anything that only a plan or a wrong spec needs.
    """
    code = (
        "import sys; from planner.cli import main; status = main()\n"
        "heavy = {'torch', 'numpy', 'pulumi', 'kubernetes', 'jinja2'}\n"
        "heavy |= {'planner.families.qwen3_next', 'planner.facts.attention.linear'}\n"
        "heavy |= {'planner.compiler', 'planner.placement.place', 'planner.spec.wrong_fields'}\n"
        "sys.exit(status or sorted(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", str(spec_file())], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def _files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

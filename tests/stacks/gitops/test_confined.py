"""A check opens no file outside the checkout, whatever a stranger's change names, and repeats no file's text."""

import json
import subprocess

import pytest

from planner.facts.files import only_within, read_file
from planner.spec.named import FILES
from stacks.cli import main
from tests.stacks.deployments import write_demo

SECRET = "hunter2-of-the-runner"
CONTENTS = {
    "text": f"{SECRET}\n",
    "table": f"time,demand\n{SECRET},{SECRET}\n",
    "columns": f"{SECRET},b\n",
    "list": json.dumps([[SECRET]]),
    "model": json.dumps({"model_type": SECRET, SECRET: 1, "num_experts": 1}),
    "text model": json.dumps(
        {"model_type": "qwen3_vl_moe", "text_config": {"model_type": SECRET}, "vision_config": {}}
    ),
    "plan": json.dumps({"version": SECRET, "digest": SECRET}),
    "twice": f'{{"{SECRET}": 1, "{SECRET}": 2}}',
    "YAML": f"version: 1\n{SECRET}: [{SECRET}",
}
BESIDE_THE_MODEL = ("tidemill-checkpoint.json", "hf_quant_config.json")
PLANNED = ("deploy/plan/plan.yaml", "deploy/plan/demo-decode-0.yaml", "deploy/plan/decode-map.yaml")
LINKED = ("spec.yaml", "prod.yaml", *PLANNED, "deploy/kustomization.yaml", *BESIDE_THE_MODEL)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A Git checkout of a rendered demo, with an overlay, in which everything that is named lies inside."""
    checkout = tmp_path / "checkout"
    (checkout / "deploy").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    write_demo(checkout)
    (checkout / "prod.yaml").write_text("name: demo\n")
    monkeypatch.chdir(checkout)
    return checkout


def _check(capsys, spec="spec.yaml", base=()):
    status = main(["gitops", "check", spec, "deploy", "-f", "prod.yaml", *base, "--format", "json"])
    return status, capsys.readouterr().out


@pytest.mark.parametrize("field", FILES)
def test_a_field_names_no_file_outside(field, checkout, capsys):
    """Neither by its path nor through a link; and whether the file exists is not said."""
    section, key = field.split(".")
    outside = checkout.parent / "secret.json"
    (checkout / "link.json").symlink_to(outside)
    said = []
    for path in ("../secret.json", str(outside), "link.json"):
        (checkout / "prod.yaml").write_text(json.dumps({section: {key: path}}))
        outside.unlink(missing_ok=True)
        without = _check(capsys)
        outside.write_text(SECRET)
        said.append(_check(capsys))

        assert said[-1] == without

    assert [status for status, _ in said] == [2, 2, 2]
    assert all("not among the checkout's files" in text and SECRET not in text for _, text in said)


@pytest.mark.parametrize("name", LINKED)
def test_a_link_leads_to_no_file_outside(name, checkout, capsys):
    """Nor into Git's own folder, where CI keeps tokens. A file, a folder and nothing get one answer.

    No field names these files: the spec itself, an overlay, the folder's, and those beside a config.json.
    """
    if name in PLANNED:
        main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
        capsys.readouterr()
    (checkout.parent / "secret.json").write_text(SECRET)
    (checkout / ".git" / "config").write_text(SECRET)
    answers = set()
    for outside in ("../secret.json", ".git/config", "..", "../nothing"):
        (checkout / name).unlink(missing_ok=True)
        (checkout / name).symlink_to(checkout / outside)
        status, said = _check(capsys)
        answers.add(said)

        assert status == 2
        assert ("not among the checkout's files" if name in BESIDE_THE_MODEL else "R608") in said
        assert SECRET not in said

    assert len(answers) == 1


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("field", FILES)
def test_a_message_repeats_no_text_of_a_file(field, content, checkout, capsys):
    """Inside the checkout, and with `validate`: the file may be named by mistake, and the message is public."""
    section, key = field.split(".")
    (checkout / "private.json").write_text(CONTENTS[content])
    (checkout / "prod.yaml").write_text(json.dumps({section: {key: "private.json"}}))
    status, said = _check(capsys)
    validated = main(["validate", "spec.yaml", "-f", "prod.yaml", "--format", "json"])

    assert (status, validated) == (2, 2)
    assert SECRET not in said + capsys.readouterr().out


def test_a_plan_in_a_folder_is_not_repeated(checkout, capsys):
    """Its version and a key that stands there twice were."""
    main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
    capsys.readouterr()
    for content in CONTENTS.values():
        for name in PLANNED:
            before = (checkout / name).read_text()
            (checkout / name).write_text(f"{before.splitlines()[0]}\n{content}")
            status, said = _check(capsys)
            (checkout / name).write_text(before)

            assert status == 2
            assert SECRET not in said


@pytest.mark.parametrize("place", ["spec.yaml", "prod.yaml", "deploy"])
@pytest.mark.parametrize("target", ["../base", "vendor", "other"])
def test_no_link_leads_to_what_is_checked(place, target, checkout, capsys):
    """Be it into the base's checkout, a submodule or another folder of its own."""
    main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
    capsys.readouterr()
    subprocess.run(["cp", "-r", str(checkout), str(checkout.parent / "base")], check=True)
    (checkout / target).mkdir(exist_ok=True)
    if target == "vendor":
        (checkout / "vendor" / ".git").write_text("gitdir: ../.git/modules/vendor\n")
    (checkout / place).rename(checkout / target / f"real-{place}")
    (checkout / place).symlink_to(f"{target}/real-{place}")
    status, said = _check(capsys, base=("--base", "../base"))

    assert status == 2
    assert [(each["file"], each["rule"][:4]) for each in json.loads(said)["errors"]] == [(place, "R608")]


def test_a_folder_behind_a_link_is_in_no_checkout_of_its_own(checkout, capsys):
    """A folder above it may be the link, into a submodule or into the checkout of somebody else."""
    for other in (checkout.parent / "other", checkout / "vendor"):
        subprocess.run(["git", "init", "--quiet", str(other)], check=True)
        (other / "spec.yaml").write_text(SECRET)
        (checkout / "sub").unlink(missing_ok=True)
        (checkout / "sub").symlink_to(other)
        status, said = _check(capsys, "sub/spec.yaml")

        assert (status, SECRET in said) == (2, False)
        assert "R608 must not be a link" in said


def test_the_own_spec_names_no_file_of_the_base(checkout, capsys):
    """In a pull request both lie side by side; once merged, the link leads nowhere."""
    base = checkout.parent / "base"
    main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
    subprocess.run(["cp", "-r", str(checkout), str(base)], check=True)
    (checkout / "deploy" / "plan" / "plan.yaml").unlink()
    (checkout / "deploy" / "plan" / "plan.yaml").symlink_to(base / "deploy" / "plan" / "plan.yaml")
    status, said = _check(capsys, base=("--base", "../base"))

    assert status == 2
    assert "R608 must not be a link" in said


@pytest.mark.parametrize("name", [".git", ".GIT", ".Git"])
def test_gits_own_folder_is_not_read_by_any_spelling(name, tmp_path):
    """A file system that ignores case takes `.GIT` for it."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "config").write_text(SECRET)
    with only_within([tmp_path]), pytest.raises(PermissionError):
        read_file(tmp_path / name / "config")


def test_the_base_has_a_checkout_of_its_own(checkout, capsys):
    """What its spec names lies there, and a link out of it is not followed."""
    base = checkout.parent / "base"
    main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
    subprocess.run(["cp", "-r", str(checkout), str(base)], check=True)
    passed, _ = _check(capsys, base=("--base", "../base"))
    (base / "deploy" / "plan" / "plan.yaml").rename(checkout.parent / "secret.yaml")
    (base / "deploy" / "plan" / "plan.yaml").symlink_to("../../../secret.yaml")
    refused, said = _check(capsys, base=("--base", "../base"))

    assert (passed, refused) == (0, 2)
    assert "not among the checkout's files" in said


@pytest.mark.parametrize("name", ["other", "other/kustomization.yaml"])
def test_a_neighbour_that_leads_out_of_the_checkout_is_not_looked_into(name, checkout, capsys):
    """The condition `nodes` reads the folders beside FOLDER. What lies outside gets one answer, be it there or not."""
    main(["render", "spec.yaml", "-f", "prod.yaml", "-o", "deploy"])
    outside = checkout.parent / "elsewhere"
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).symlink_to(outside)
    answers = []
    for make in (lambda: None, outside.mkdir, (outside / "kustomization.yaml").touch):
        make()
        capsys.readouterr()
        status = main(["gitops", "check", "spec.yaml", "deploy", "-f", "prod.yaml", "--fail-on", "nodes"])
        answers.append((status, *capsys.readouterr()))

    assert answers == [answers[0]] * 3

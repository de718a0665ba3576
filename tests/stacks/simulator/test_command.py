"""`tidemill simulate`."""

import json
import re

import pytest
import yaml

from stacks import cli


def test_columns_stand_side_by_side(small_spec, capsys):
    """A table for people has the spec as written and each --set, and says what failed."""
    status = cli.main(
        [
            *("simulate", str(small_spec), "--fail", "node-0@12:40"),
            *("--set", "traffic.scale=3", "--set", "slo.ttft_ms=4000,slo.tpot_ms=60"),
        ]
    )
    out = capsys.readouterr().out

    assert status == 0
    assert out.splitlines()[2].split() == ["[1]", "[2]", "[3]"]
    assert "[3] slo.ttft_ms=4000,slo.tpot_ms=60" in " ".join(out.split())
    assert "is out from 12:40 until 12:50 on spare node-2, because node-0 fails" in " ".join(out.split())
    assert "[2]: requests are refused" in " ".join(out.split())
    assert "since units have as many requests as they take" in " ".join(out.split())  # mixed ones: none is decode's
    assert "[2]: mixed is asked for" in " ".join(out.split())
    assert "[3]: mixed is asked for" not in " ".join(out.split())


def test_the_document_has_the_figures_of_the_table(small_spec, capsys):
    """JSON has each figure at each level and the curves of 1,440 minutes; nothing else is on stdout."""
    status = cli.main(["simulate", str(small_spec), "--format", "json"])
    (column,) = json.loads(capsys.readouterr().out)["columns"]

    assert status == 0
    assert column["title"] == "as written"
    assert set(column["figures"]["ttft_p99_ms"]) == {"low", "mid", "high"}
    assert column["figures"]["ttft_kept"]["mid"] is None
    assert {len(each) for each in column["curves"].values()} == {1440}


def test_a_promise_that_is_never_kept_has_its_row(small_spec, capsys):
    """The worst result is told in the table of one column as in that of several."""
    spec = yaml.safe_load(small_spec.read_text()) | {"slo": {"tpot_ms": 1}}
    small_spec.with_name("strict.yaml").write_text(yaml.safe_dump(spec))
    call = ["simulate", str(small_spec.with_name("strict.yaml"))]
    for more in ([], ["--set", "traffic.scale=1.1"]):
        assert cli.main(call + more) == 0
        (row,) = [line for line in capsys.readouterr().out.splitlines() if "TPOT kept" in line]

        assert set(row.split()[2:]) == {"0.00%"}


def test_a_simulation_sends_nobody_to_a_simulation(small_spec, capsys):
    """Traffic that is too much is warned of here as by `plan`, without advice to call what has been called."""
    spec = yaml.safe_load(small_spec.read_text())
    spec["traffic"]["output_tokens"] *= 30
    small_spec.with_name("much.yaml").write_text(yaml.safe_dump(spec))
    assert cli.main(["simulate", str(small_spec.with_name("much.yaml"))]) == 0
    err = capsys.readouterr().err

    assert re.search(r"all mixed units are on then: plan \d+ of them, which take \d+ nodes", err)
    assert "tidemill simulate" not in err


def test_scale_leaves_the_plan_as_it_is(small_spec, capsys):
    """More traffic than foreseen meets the plan that was made, and a changed spec a plan of its own."""
    words = ["--set", "traffic.scale=1.5", "--set", "mixed.redundant_experts=8", "--format", "json"]
    assert cli.main(["simulate", str(small_spec), *words]) == 0
    first, scaled, other = json.loads(capsys.readouterr().out)["columns"]

    assert first["plan_digest"] == scaled["plan_digest"] != other["plan_digest"]
    assert scaled["figures"]["requests"]["mid"] == pytest.approx(1.5 * first["figures"]["requests"]["mid"], abs=1)


def test_a_date_is_played_with_its_own_demand(small_spec, capsys):
    """A Sunday of half the demand has half the requests, wherever the date comes from."""
    text = small_spec.read_text()
    assert "profile" in text
    spec = yaml.safe_load(text)
    halves = [each / 2 for each in spec["traffic"]["profile"]]
    spec["traffic"]["other_days"] = [{"days": ["sunday"], "profile": halves}]
    small_spec.with_name("week.yaml").write_text(yaml.safe_dump(spec))
    played = {}
    for day in ("2026-11-29", "sunday", "2026-11-30"):
        assert cli.main(["simulate", str(small_spec.with_name("week.yaml")), "--date", day, "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["date"] == day
        played[day] = document["columns"][0]["figures"]["requests"]["mid"]

    assert played["2026-11-29"] == played["sunday"] == pytest.approx(played["2026-11-30"] / 2, rel=1e-4)


def test_a_day_that_nobody_switches_is_played_with_all_units_on(small_spec, capsys):
    """Without a controller the schedule saves nothing, and the note says why; with one, nodes are off at night."""
    spec = yaml.safe_load(small_spec.read_text())
    windows = [{"at": "08:00", "mixed_units": 2}, {"at": "20:00", "mixed_units": 1}]
    del spec["mixed"]["units"]
    hours = {}
    for name, kubernetes in (("unswitched", {}), ("switched", {"controller": {}})):
        path = small_spec.with_name(f"{name}.yaml")
        path.write_text(yaml.safe_dump(spec | {"schedule": {"windows": windows}, "kubernetes": kubernetes}))
        assert cli.main(["simulate", str(path)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        hours[name] = re.search(r"node-hours on ([\d.]+)", out)[1]
        assert ("Without kubernetes.controller nothing switches units in a cluster" in out) is (name == "unswitched")

    assert hours == {"unswitched": "48.0", "switched": "36.0"}


def test_a_day_that_the_spec_says_nothing_about_is_called_a_usual_one(small_spec, capsys):
    """A reader of the table is not told that it is of a Saturday, where Sundays alone are unlike the others."""
    spec = yaml.safe_load(small_spec.read_text())
    spec["traffic"]["other_days"] = [{"days": ["sunday"], "profile": [1] * 24}]
    small_spec.with_name("sundays.yaml").write_text(yaml.safe_dump(spec))
    said = {}
    for day in ("saturday", "2026-11-29"):
        assert cli.main(["simulate", str(small_spec.with_name("sundays.yaml")), "--date", day]) == 0
        said[day] = capsys.readouterr().out.splitlines()[0]

    assert ": a usual day, since the spec has nothing about saturday, minute by minute" in said["saturday"]
    assert ": 2026-11-29, minute by minute" in said["2026-11-29"]


@pytest.mark.parametrize(
    ("words", "rules", "status"),
    [
        (["--date", "2026-02-30"], ["R417"], 2),
        (["--fail", "noon", "--fail", "node-0@24:00"], ["R403", "R403"], 2),
        (["--fail", "node-99@12:00"], ["R404"], 2),
        (["--set", "decode", "--set", "traffic.scale=-1"], ["R405", "R407"], 2),
        (["--set", "mixed.ep_size=12", "--set", "traffic=null"], ["S501", "R401"], 2),
        (["--set", "slo.ttft=72", "--set", "traffic.scale=0"], ["S201", "R407"], 2),
        (["--set", "mixed.ep_size=12,traffic.scale=0", "--date", "tomorrow"], ["S501", "R407", "R417"], 2),
        (
            ["--set", "name.x=1", "--set", "cluster.nodes.99.rack=a", "--set", "mixed.epsize=8"],
            ["S201", "R418", "R418"],
            2,
        ),
        (["--set", "mixed.redundant_experts=256"], ["S707"], 3),
    ],
)
def test_mistakes_are_said_all_at_once(small_spec, capsys, words, rules, status):
    """Wrong calls and wrong columns exit with 2, infeasible ones with 3, and each says its rule."""
    assert cli.main(["simulate", str(small_spec), *words, "--format", "json"]) == status

    errors = json.loads(capsys.readouterr().out)["errors"]
    said = [each["rule"].split()[0] for each in errors]
    assert [rule for rule in said if rule in rules] == rules


@pytest.mark.parametrize("change", ["mixed.ep_size=12", "mixed.redundant_experts=256"])
def test_what_is_wrong_with_a_column_names_it(small_spec, capsys, change):
    """People see which one of several columns is wrong or cannot be planned."""
    cli.main(["simulate", str(small_spec), "--set", "traffic.scale=2", "--set", change])

    assert f"(with --set {change})" in capsys.readouterr().err


def test_columns_that_can_be_planned_are_shown_beside_one_that_cannot(small_spec, capsys):
    """The table has them, the error names the other one, and the status is that of the error."""
    words = ["--set", "traffic.scale=2", "--set", "mixed.redundant_experts=256"]
    assert cli.main(["simulate", str(small_spec), *words]) == 3

    assert "traffic.scale=2" in capsys.readouterr().out


def test_json_has_the_columns_that_can_be_planned_beside_the_errors(small_spec, capsys):
    """A program reads why one is missing, and the others as ever."""
    words = ["--set", "traffic.scale=2", "--set", "mixed.redundant_experts=256", "--format", "json"]
    assert cli.main(["simulate", str(small_spec), *words]) == 3

    said = json.loads(capsys.readouterr().out)
    assert [each["title"] for each in said["columns"]] == ["as written", "traffic.scale=2"]
    assert (said["valid"], [each["rule"][:4] for each in said["errors"]]) == (False, ["S707"])


def test_mistakes_of_all_options_are_said_at_once(small_spec, capsys):
    """A wrong --fail hides no wrong --set, nor a wrong --date."""
    words = ["--fail", "noon", "--set", "decode", "--date", "2026-02-30"]
    assert cli.main(["simulate", str(small_spec), *words, "--format", "json"]) == 2

    errors = json.loads(capsys.readouterr().out)["errors"]
    assert {each["rule"][:4] for each in errors} == {"R403", "R405", "R417"}


def test_an_idle_node_is_offered_as_a_spare(small_spec, tmp_path, capsys):
    """A unit that nothing brings back is said to be out until midnight, with the spare that would."""
    spec = yaml.safe_load(small_spec.read_text())
    del spec["cluster"]["spares"]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec))
    assert cli.main(["simulate", str(tmp_path / "small.yaml"), "--fail", "node-0@12:40"]) == 0

    offered = "because node-0 fails: with cluster.spares: [node-2] the unit serves again after 10 min."
    assert offered in " ".join(capsys.readouterr().out.split())


def test_a_spare_that_fails_first_is_said_to_stop_nothing(small_spec, capsys):
    """Its figures are those of a day without the failure, and the note says why."""
    assert cli.main(["simulate", str(small_spec), "--fail", "node-2@09:00"]) == 0

    assert "node-2 is a spare: its failure stops no unit" in " ".join(capsys.readouterr().out.split())


def test_a_day_without_answers_has_no_latencies_in_text_or_json(small_spec, capsys):
    """Text leaves their rows out and says why, and JSON has null; income is 0, which is told.

    A spare that fails in the same minute takes nobody's place.
    """
    spec = yaml.safe_load(small_spec.read_text())
    spec["cost"] = {"usd_per_gpu_hour": 2.0, "prices": {"input_hit": 0.1, "input_miss": 0.5, "output": 2.0}}
    small_spec.with_name("dead.yaml").write_text(yaml.safe_dump(spec))
    call = ["simulate", str(small_spec.with_name("dead.yaml"))]
    call += [word for number in (2, 0, 1) for word in ("--fail", f"node-{number}@00:00")]
    assert cli.main(call) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert cli.main([*call, "--format", "json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["columns"]

    assert "no request is answered, so latencies have no value." in text
    assert "TTFT" not in text
    assert "income, US$ 0" in text
    assert column["figures"]["ttft_mean_ms"] == {"low": None, "mid": None, "high": None}
    assert set(column["curves"]["ttft_ms"] + column["curves"]["tpot_ms"]) == {None}


def test_a_gpu_without_rates_cannot_be_simulated(spec_writer, tmp_path, capsys):
    """The demo runs on a CPU, whose speed no table has."""
    spec = spec_writer(tmp_path, traffic={"input_tokens": 1e6, "output_tokens": 1e6})

    assert cli.main(["simulate", str(spec), "--format", "json"]) == 3
    assert [each["rule"][:4] for each in json.loads(capsys.readouterr().out)["errors"]] == ["R402", "R402"]


def test_a_value_that_may_be_a_secret_names_no_column(small_spec, capsys):
    """Environment variables hold tokens, so their fields name the column without their values."""
    words = ["--set", "kubernetes.env.HF_TOKEN=s3cret"]
    assert cli.main(["simulate", str(small_spec), *words]) == 0
    told = capsys.readouterr().out

    assert "kubernetes.env.HF_TOKEN" in told
    assert "s3cret" not in told

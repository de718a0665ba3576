"""A plan as text: ten lines that answer what its readers ask, tables, and every unit with its nodes."""

import json
import re
from dataclasses import replace

import pytest

from planner.cli import main
from planner.compiler import compile_plan, plan_from
from planner.plan.load import read_plan
from planner.problems.errors import CallError
from planner.report.prerequisites import prerequisites
from planner.report.report import Report, format_range, format_value
from planner.report.rows import report_of, rows_of
from planner.report.summary import summary
from planner.report.text import find_unit, plan_text, read_tables, unit_text
from planner.rules.check import change_spec, check_spec
from planner.spec.decision import DEFAULT
from tests.planner.layout.test_memory import PAIR
from tests.planner.test_shipped_specs import SPECS

FLAGSHIP = "deepseek-h800.yaml"
KEPT = {"memory": "48GiB", "disk": {"path": "/kv", "size": "4TB", "bandwidth": "6GB/s"}}
TABLES = (*read_tables().usual, *read_tables().more)
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?")


@pytest.fixture(scope="module")
def shipped():
    """A function: the plan of a spec that ships, made once."""
    plans = {}

    def plan(name=FLAGSHIP, **changes):
        key = name, json.dumps(changes, sort_keys=True)
        if key not in plans:
            plans[key] = compile_plan(
                change_spec(check_spec(SPECS / name), changes) if changes else check_spec(SPECS / name)
            )
        return plans[key]

    return plan


def lines_of(plan):
    """Each topic of the first lines, with its sentence."""
    return summary(report_of(plan))


def joined(text):
    """A text without its line ends."""
    return " ".join(text.split())


def test_the_first_lines_answer_what_is_asked(shipped):
    """Units, the day, dollars, load, speed, latencies, the worst failure, guesses and blockers of the published day."""
    lines = lines_of(shipped())

    assert lines["units"].startswith("29 prefill units of 4 nodes, 9 decode units of 18 nodes: 278 of 278 nodes (")
    assert lines["day"] == (
        "most 278 nodes 08:30-00:00 (29 prefill, 9 decode), fewest 68 nodes 03:30-06:30 (8 prefill, 2 decode), "
        "228.94 taken on average; the controller switches units"
    )
    assert lines["cost"] == (
        "$87,912 a day at $2 per GPU-hour; $0.5288 ($0.5237 to $1.0052) per million output or $0.1461 ($0.1447 to "
        "$0.2778) per million input tokens, if these bear it all; income $556,095 ($292,544 to $561,503), "
        "margin 84.2% (69.9% to 84.3%)"
    )
    assert lines["load"] == (
        "decode is short for 8.50 h (03:30-04:00, 06:00-06:30, 07:00-07:30, 10:00-11:00, 14:00-17:00, "
        "20:00-23:00); peak load, % of capacity: prefill 58.9% (15:00, 22:00), decode 120.8% (03:30, 06:00); "
        "slowest speed: prefill 117.8%, decode 241.6%; 99.0% answered"
    )
    assert lines["speed"].startswith("tokens/s per GPU: prefill 4,024 (2,012 to 5,226), decode 1,715 (")
    assert lines["TTFT"] == (
        "mean 3,480 ms (2,680 to 6,958), p99 10,376 ms (7,989 to 20,749); "
        "mean 3,769 ms at the peak, with 109.3% of this load; no slo.ttft_ms"
    )
    assert lines["TPOT"].endswith("; mean 66.4 ms at the peak, with 135.8% of this load; no slo.tpot_ms")
    assert lines["failure"].startswith(
        "worst: losing the only gateway stops all; next: losing one GPU, node or rack (decode-0 rank 0) "
        "stops 1 of 2 decode units (50.0%) at 03:30, with fewest on, and up to $3,343 of an hour's income; 1 of 9 "
        "decode units (11.1%) with all on; out until repaired: no node is a spare (the 210 off are"
    )
    assert (
        "expert loads (power law, alpha 1.01, seed 0); speed of tidemill (never measured); cuda graphs of decode (2.7 "
        "GB); schedule.start (defaults" in lines["assumed"]
    )
    assert lines["blockers"].endswith(
        "check node names (node-0 to node-277), weights (/models/deepseek-r1), folder (/mnt/models); warnings: [W138]"
    )


def test_the_worst_loss_costs_what_its_unit_would_have_earned(shipped):
    """While both decode units are full, one of them makes half the tokens that are answered."""
    plan = shipped()
    usd = next(row.value for row in plan.report if row.name == "unserved_usd_per_hour")
    (state,) = (each for each in plan.cost.states if each.at == "03:30")
    full = max(plan.demand["decode"].stretches, key=lambda each: each.asked_tokens_per_s / each.most_tokens_per_s)
    answered = full.most_tokens_per_s / full.asked_tokens_per_s
    tokens = sum(each.asked_tokens_per_s * each.minutes for each in plan.demand["decode"].stretches)
    asked_usd = plan.cost.revenue_if_all_answered_usd_per_day * full.asked_tokens_per_s * 60 / tokens

    assert usd == pytest.approx(asked_usd * answered / 2)
    assert state.revenue_usd / state.minutes * 60 / 2 <= usd
    assert "income" not in lines_of(shipped(**{"cost.prices": None}))["failure"]


def test_the_first_lines_name_unknown_figures(shipped):
    """On a CPU nothing is predicted; without prices there are no dollars, and a single unit is all of the service."""
    lines = lines_of(shipped("demo.yaml"))

    assert lines["speed"] == "not predicted: the rates of cpu are not known"
    assert lines["cost"].startswith("unknown: ")
    assert "stops the only prefill unit, and so the service; out until" in lines["failure"]
    assert lines["blockers"] == "none known"
    assert lines["TTFT"] == lines["TPOT"] == "not predicted"
    assert lines["units"].endswith("3 of 3 nodes (2 CPU ranks each)")
    assert lines["load"] == "unknown: no speed is predicted"
    assert lines_of(shipped(traffic=None, **{"cost.prices": None}))["load"] == "unknown: the spec has no traffic"


def test_a_cache_is_told_where_no_speed_is_predicted(shipped, tmp_path):
    """It takes traffic and the size of KV, which ranks on CPUs have too. The spec needs no dollars."""
    traffic, path = {"input_tokens": 1e6, "output_tokens": 1e5}, tmp_path / "plan.json"
    plan = shipped("demo.yaml", kv_cache={"memory": "64MiB"}, traffic=traffic)
    path.write_text(json.dumps(plan.as_json()))
    token_bytes = next(iter(plan.launch_documents.values()))["kv_cache"]["bytes_per_token"]

    assert lines_of(plan)["load"] == "unknown: no speed is predicted"
    assert lines_of(plan)["KV kept"].startswith("a block stays ")
    assert plan.kv_cache.day_bytes == 1.1e6 * token_bytes
    assert read_plan(path).report == plan.report


def test_kept_kv_is_told_with_the_hits_that_it_gives(shipped, tmp_path):
    """Beside the spec's rate. Predictions read KV at the disk's rate, and 84 nodes a day begin with empty memory.

    Hits save what the nodes cost that would compute them, and disks have a price of their own.
    """
    plan, path = shipped(**{"kv_cache": KEPT, "cost.disk": {"usd_per_tb_month": 4}}), tmp_path / "plan.json"
    path.write_text(json.dumps(plan.as_json()))
    lines = lines_of(plan)

    assert lines["KV kept"] == (
        "a block stays 1.34 min in memory and 30 min on the disk in the busiest hour: 25.3% hits in Mooncake's"
        " conversations save 55.34 nodes and $21,252 a day (memory alone 13.4% and 29.23);"
        " traffic.cache_hit_rate is 56.3%; each pod takes 416.6 GB of memory and makes up to 17.11 drive"
        " writes a day; the disks cost $61 a day"
    )
    assert plan.kv_cache.kept.lost_share == pytest.approx(84 * 8 * 48 * 2**30 / 70_272 / (608e9 * 0.437), rel=1e-3)
    assert plan.performance["prefill"].operating_point.cache_read_gbps == 48
    assert "cache_read_rate" not in lines["assumed"]
    assert "KV kept" not in lines_of(shipped())
    assert read_plan(path).report == plan.report


NOTES = [" ".join(note.split()) for table in TABLES for note in (table.note, *table.notes.values())]


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_a_note_speaks_of_what_its_table_shows(name, shipped):
    """It quotes titles as they stand there, and names no key of PLAN.json."""
    for table in plan_text(shipped(name), full=True).split("\n\n"):
        words = " ".join(table.split())
        quoted = {title for note in NOTES if note in words for title in re.findall('"([^"]+)"', note)}

        assert all(words.lower().count(title.lower()) > 1 for title in quoted)

    assert not [note for note in NOTES if re.search("[a-z]_[a-z]", note)]


def test_a_sentence_about_a_figure_stands_where_the_figure_does(shipped):
    """A cache without a disk writes to none; every name that a sentence belongs to is one of a plan."""
    full = plan_text(shipped(kv_cache={"memory": "48GiB"}), full=True)
    named = {part for row in shipped(kv_cache=KEPT).report for part in (*row.section.split("."), row.name)}

    assert "endurance" in plan_text(shipped(kv_cache=KEPT), full=True)
    assert not re.search("endurance|alone", full)
    assert {name.rpartition(".")[2] for table in TABLES for name in table.notes} <= named


def test_an_engine_that_cannot_run_it_is_a_blocker(shipped):
    """The first lines name the rule's id, as `validate` prints it; the message stands below."""
    plan = shipped("mi300x-single-node.yaml")

    assert lines_of(plan)["blockers"] == "tidemill cannot run it: [S740]; check node names (node-0)"
    assert "It cannot run:\n  - cluster.gpu (mi300x) must be " in plan_text(plan)


def test_a_promise_names_the_speeds_at_which_it_is_kept(shipped):
    """The slowest, the expected and the fastest; and what is known of their chance where they differ."""
    said = {
        103: "kept, even at the slowest speed",
        60: "kept at the expected speed, missed at the slowest; how likely that is, nobody has measured",
        50: "missed at the expected speed, kept at the fastest; how likely that is, nobody has measured",
        45: "missed, even at the fastest speed",
    }
    for tpot_ms, verdict in said.items():
        line = lines_of(shipped("h800-one-pair.yaml", **{"slo.tpot_ms": tpot_ms}))["TPOT"]

        assert (
            line == f"mean 51.3 ms (45.1 to 102.6), p99 53.5 ms (47.1 to 107.1); slo.tpot_ms of {tpot_ms} is {verdict}"
        )


def test_a_kind_of_domain_that_no_plan_has_is_shown_as_written(spec_text, plan_of):
    """A made-up plan with the right digests may have any text in its rows, as in every other row."""
    rows = [replace(each, value="zzz") if each.name == "domains" else each for each in plan_of(spec_text).report]

    assert summary(Report(rows))["failure"].startswith("worst: losing one zzz (")


def test_idle_nodes_and_spares_are_told_where_a_unit_is_lost(with_line, plan_of):
    """A spare takes over, an idle node could, or nothing does."""
    repaired = "out until repaired"
    said = {
        "nodes: 3": f"{repaired}: no node is a spare",
        "nodes: 4": f"{repaired}: with cluster.spares: [node-3] the unit serves again after 10 min",
        "nodes: 4\n  spares: [node-3]": "out for 10 min, until it serves on a spare",
    }

    assert {nodes: lines_of(plan_of(with_line(8, f"  {nodes}")))["failure"].split("; ")[1] for nodes in said} == said


def test_of_many_equal_peaks_the_first_is_named_with_the_hours_of_the_others(shipped):
    """Traffic that is the same all day is as high in every hour."""
    flat = {"traffic.profile": [1.0] * 24, "schedule": None}

    assert "decode 700.4% (00:00 and 23 h more)" in lines_of(shipped(**flat))["load"]


def test_traffic_that_fits_is_told_with_the_load_at_the_slowest_speed(shipped):
    """The load at the slowest speed is told even where traffic fits at the expected one."""
    line = lines_of(shipped(**{"traffic.input_tokens": 300e9, "traffic.output_tokens": 100e9}))["load"]

    assert line.startswith(
        "it fits in every hour at the expected speed; peak load, % of capacity: prefill 29.1% (15:00, "
    )
    assert "slowest speed: prefill 58.1%, decode 143.8%; 100.0% answered" in line


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_every_number_of_the_text_is_a_rows(name, shipped):
    """Also with everything shown: writers compute nothing. Names and digests are no numbers."""
    plan = shipped(name)
    known = " ".join(
        " ".join((row.section, row.name, row.unit, row.note, format_value(row), *format_range(row)))
        for row in plan.report
    )
    names = " ".join(
        [plan.digest, plan.name, *(f"{unit.name} {unit.why} {' '.join(unit.nodes)}" for unit in plan.units)]
    )
    titles = "p99, more tokens/s with 10% more of it"
    numbers = set(NUMBER.findall(plan_text(plan, full=True))) | set(NUMBER.findall(plan_text(plan)))

    assert numbers - set(NUMBER.findall(f"{known} {names} {titles}")) == set()


@pytest.mark.parametrize("name", [FLAGSHIP, "demo-day.yaml", "mi300x-single-node.yaml"])
def test_rows_are_those_of_the_json_and_of_a_plan_that_was_read(name, shipped, tmp_path):
    """Each has a section and a name of its own, by which rows of two plans are matched."""
    plan, path = shipped(name), tmp_path / "plan.json"
    path.write_text(json.dumps(plan.as_json()))
    read = read_plan(path)

    assert [vars(row) for row in plan.report] == plan.as_json()["report"]
    assert rows_of(read) == read.report == plan.report
    assert len({(row.section, row.name) for row in plan.report}) == len(plan.report)
    assert plan_text(read, full=True) == plan_text(plan, full=True)


def test_figures_of_the_json_are_rows_under_its_keys(shipped):
    """Each row has the figure's unit, its range and where it comes from."""
    plan = shipped()
    report, tpot = Report(plan.report), plan.performance["decode"].tpot_ms
    found = {
        (section, name): report.find(section, name)
        for section, name in (
            ("performance.decode", "tpot_ms"),
            ("cost", "usd_per_million_output_tokens"),
            ("phases.decode", "attention_tp"),
            ("gpu", "nic_gbps"),
            ("balance.decode", "max_over_mean"),
        )
    }
    (latency, price, default, nic, balance) = found.values()

    assert (latency.value, latency.low, latency.high) == (tpot.mid, tpot.low, tpot.high)
    assert (latency.unit, latency.provenance) == ("ms", "predicted")
    assert (price.value, price.provenance) == (plan.cost.usd_per_million_output_tokens, "predicted")
    assert (default.value, default.provenance) == (1, "default")
    assert (nic.provenance, balance.provenance) == ("published", "assumed")
    assert nic.note.startswith("github.com/")


def test_rows_are_outside_what_is_deployed(shipped, tmp_path):
    """A plan without estimates has none, and the same digest; the document's digest covers them."""
    plan, path = shipped("h800-one-pair.yaml"), tmp_path / "plan.json"
    edited = [vars(row) for row in plan.report]
    edited[-1] = edited[-1] | {"value": 1.0}
    path.write_text(json.dumps(plan.as_json() | {"report": edited}))

    assert plan_from(SPECS / "h800-one-pair.yaml").digest == plan.digest
    assert plan_from(SPECS / "h800-one-pair.yaml").report is None
    with pytest.raises(CallError, match="S909"):
        read_plan(path)


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_it_fits_a_terminal(name, shipped):
    """At most 80 columns; without --full at most 120 lines, of which the first 30 are the summary."""
    plan = shipped(name)

    assert max(map(len, (plan_text(plan) + plan_text(plan, full=True)).splitlines())) <= 80
    assert len(plan_text(plan).splitlines()) <= 120
    assert len(plan_text(plan).split("\n\n")[1].splitlines()) <= 30


@pytest.mark.slow
def test_a_search_fits_a_terminal(spec_file):
    """Every layout that was weighed fits, as do days that are not like most."""
    even = {"days": ["saturday", "sunday"], "profile": [2] * 24}
    traffic = {"input_tokens": 16e9, "output_tokens": 8e9, "profile": [1] * 12 + [3] * 12, "other_days": [even]}
    auto = {"ep_size": "auto", "redundant_experts": "auto", "precision": "bf16", "max_requests": "auto"}
    spec = {
        "version": 1,
        "name": "sea",
        "model": "deepseek-v2-lite",
        "cluster": {"gpu": "h800", "nodes": 24, "gpus_per_node": 8, "spares": ["node-23"]},
        "slo": {"ttft_ms": 2000, "tpot_ms": 50},
        "traffic": traffic,
        "schedule": "auto",
        "cost": {"usd_per_gpu_hour": 2.0},
        "prefill": auto,
        "decode": auto,
    }
    plan = compile_plan(check_spec(spec_file(json.dumps(spec, indent=1), "sea.yaml")))

    assert max(map(len, plan_text(plan, full=True).splitlines())) <= 80
    assert len({(row.section, row.name) for row in plan.report}) == len(plan.report)
    assert "other days: saturday, sunday" in lines_of(plan)["day"]
    assert "min, until it serves on a spare" in joined(lines_of(plan)["failure"])


def test_whoever_is_called_at_night_finds_each_unit(shipped, capsys):
    """One with each of its nodes and the ranks there, or all of them."""
    plan = shipped()
    full, unit = plan_text(plan, full=True), plan.units[-1]
    ranks = [f"{first} to {first + 7}" for first in range(0, 144, 8)]

    assert all(f"\n  {each.name} " in full for each in plan.units)
    assert [line.split(maxsplit=1) for line in unit_text(unit).splitlines()[3:]] == [
        [node, rank] for node, rank in zip(unit.nodes, ranks, strict=True)
    ]
    assert find_unit(plan, unit.name) is find_unit(plan, "decode-8") is unit
    assert main(["plan", str(SPECS / FLAGSHIP), "--unit", "decode-8", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan.as_json()["units"][-1]
    assert main(["plan", str(SPECS / FLAGSHIP), "--unit", "decode-9"]) == 2
    assert "S916" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (["a", "b"], "a, b"),
        (["n-8", "n-9", "n-10", "n-12"], "n-8 to n-10, n-12"),
        (["n-36", "n-37", "n-38", "n-35", "n-34"], "n-36 to n-38, n-35, n-34"),
        (["n08", "n09", "n10"], "n08 to n10"),
        (["n8", "n09", "n10"], "n8, n09, n10"),
        (["a9", "b10", "b11", "b12"], "a9, b10 to b12"),
    ],
)
def test_a_range_of_nodes_has_every_node_between(nodes, expected, plan_of):
    """In the order of ranks; names that skip a number, go down or are written otherwise begin anew."""
    spec = {
        "version": 1,
        "name": "river",
        "model": {"config": "config.json"},
        "cluster": {"gpu": "cpu", "nodes": [{"name": name} for name in nodes], "gpus_per_node": 1},
        "mixed": {"ep_size": len(nodes), "redundant_experts": -32 % len(nodes), "precision": "fp32"},
    }

    assert joined(plan_text(plan_of(json.dumps(spec, indent=1)), full=True)).endswith(f" {expected}")


def test_what_the_overlay_changes_is_said_without_its_values(spec_text, plan_of):
    """They may be secrets; a plan without an overlay says nothing."""
    objects = "[{kind: Service, patch: {spec: {type: NodePort}}}]"
    overlay = f"  overlay: {{unit_pod: {{spec: {{hostIPC: true, dnsPolicy: null}}}}, objects: {objects}}}\n"
    text = plan_text(plan_of(spec_text + overlay), full=True)

    assert all(f"  {each}" in text for each in ("pods of units: spec.hostIPC", "pods of units: spec.dnsPolicy"))
    assert "  every Service: spec.type" in text
    assert "NodePort" not in text
    assert "overlay" not in plan_text(plan_of(spec_text), full=True)


def test_nodes_that_are_not_used_are_named_with_their_reason(with_line, plan_of):
    """All of them, each reason once; and so are spares."""
    away = [f"{{name: n{index}, taints: [team=research:NoSchedule]}}" for index in range(6)]
    nodes = ", ".join([*away, "{name: x, taints: [down=yes:NoExecute]}", "{name: a}", "{name: b}", "{name: c}"])
    text = joined(plan_text(plan_of(with_line(8, f"  nodes: [{nodes}]")), full=True))
    spares = plan_text(plan_of(with_line(8, "  nodes: 7\n  spares: [node-4, node-5, node-6]")), full=True)

    assert "Not used: n0 to n5 (tainted team=research:NoSchedule); x (tainted down=yes:NoExecute)." in text
    assert "  Spares for units that lose a node: node-4 to node-6.\n" in spares


def test_a_reason_of_several_decisions_is_said_once(shipped):
    """The rows below the first one refer to it."""
    text = plan_text(shipped())

    assert text.count("the most that any window of the schedule has") == 1
    assert "decode.units   9; for the same reason" in text


@pytest.mark.parametrize(
    ("controller", "day", "cost"),
    [
        (
            None,
            "all units stay on (22 nodes): without kubernetes.controller nobody switches them; with it most 22 nodes",
            "$8,448 a day at $2 per GPU-hour, $4,312 with kubernetes.controller;",
        ),
        ({}, "most 22 nodes", "$4,312 a day at $2 per GPU-hour;"),
    ],
)
def test_a_schedule_that_nothing_follows_is_told(controller, day, cost, plan_of):
    """The first lines are those of the day as it runs, and then of what a controller would make of it."""
    windows = [
        {"at": at, "prefill_units": number, "decode_units": number} for at, number in (("08:00", 1), ("20:00", 0))
    ]
    kubernetes = {} if controller is None else {"kubernetes": {"controller": controller}}
    spec = PAIR | {"schedule": {"timezone": "UTC", "windows": windows}, "cost": {"usd_per_gpu_hour": 2}} | kubernetes
    lines = lines_of(plan_of(json.dumps(spec, indent=1)))

    assert lines["day"].startswith(day)
    assert cost in f"{lines['cost']};"


def test_what_a_plan_relies_on_is_told(spec_file):
    """Nobody here has seen the cluster: names of nodes, folders, weights and images are a reader's to compare."""
    model = {"catalog": "deepseek-r1", "checkpoint": "/models/r1"}
    kubernetes = {"image": "mine:1", "volumes": [{"host_path": "/mnt/models", "mount_path": "/models"}]}
    ours, sglang, vllm, alone = (
        {
            what: value
            for what, value, _ in prerequisites(plan_from(spec_file(json.dumps(PAIR | changes), "relied.yaml")))
        }
        for changes in (
            {"model": model, "kubernetes": kubernetes},
            {"model": model, "engine": "sglang"},
            {"model": model, "engine": "vllm"},
            {},
        )
    )

    assert list(ours) == ["node names", "weights", "folder"]
    assert sglang["kubernetes.image"] == "lmsysorg/sglang:v0.5.23"
    assert vllm["kubernetes.gateway.edge_image"] == "nginxinc/nginx-unprivileged:1.29.4-alpine"
    assert "kubernetes.gateway.edge_image" not in sglang, "its router closes its own routes"
    assert alone == {}, "nothing is deployed without a checkpoint"


def test_defaults_are_listed_only_in_full(shipped):
    """Those that are guesses about a cluster apart from the others."""
    plan = shipped()
    full, defaults = plan_text(plan, full=True), [each.path for each in plan.decisions if each.why == DEFAULT]

    assert all(f"  {path} " in full for path in defaults)
    assert (
        full.index("  schedule.start.pods ") < full.index("left at its default") < full.index("kubernetes.host_network")
    )
    assert "host_network" not in plan_text(plan)


def test_rates_and_latencies_stand_beside_their_ranges(shipped):
    """A column for each end; those of a node are of its GPUs."""
    lines = plan_text(shipped("h800-one-pair.yaml")).splitlines()
    gpu, node = (next(line for line in lines if line.startswith(f"  tokens/s per {each} ")) for each in ("GPU", "node"))
    of_gpu, of_node = ([float(each.replace(",", "")) for each in NUMBER.findall(line)] for line in (gpu, node))

    assert [line.split() for line in lines if line.startswith("  speed")][1] == [
        *("speed", "prefill", "low", "high", "decode", "low", "high")
    ]
    assert of_node == pytest.approx([8 * each for each in of_gpu], abs=4)


def test_experts_that_move_are_told_in_bytes_seconds_and_pods(tmp_path):
    """A new map restarts each unit of its phase, which reads all its weights again."""
    path = tmp_path / "before.json"
    path.write_text(json.dumps(compile_plan(check_spec(SPECS / "h800-one-pair.yaml")).as_json()))
    spec = change_spec(check_spec(SPECS / "h800-one-pair.yaml"), {"expert_load.alpha": 1.05})
    plan = compile_plan(spec, read_plan(path))
    report, moves = Report(plan.report), "balance.decode.moves"

    assert report.find(moves, "moved_slots").value == plan.balance["decode"].moves.moved_slots > 0
    assert [report.text(moves, name) for name in ("slots", "bytes_read_per_node", "read_s")] == [
        "16,704",
        "61.0 GB",
        "30",
    ]
    assert "Their pods are named at the end." in joined(plan_text(plan))

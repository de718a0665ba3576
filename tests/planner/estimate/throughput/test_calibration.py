"""A user's own measurements: what they change, and what is no measurement."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stacks
from planner.cli import main
from planner.estimate.throughput.calibration import calibrate, read_calibration
from planner.estimate.throughput.intervals import Evidence
from planner.estimate.throughput.predict import predict, saturated_rate
from planner.estimate.throughput.stages import Imbalance
from planner.problems.errors import CallError
from tests.planner.accuracy.published import PREFILL as PROFILE
from tests.planner.accuracy.published import SERVICE_DECODE, case_of

SPEC = Path(stacks.__file__).parent / "specs" / "h800-one-pair.yaml"
NONE = Evidence("none", "nobody has measured it", ())
ALMOST = 1 - 1e-9
DECODE, PREFILL = case_of(SERVICE_DECODE, Imbalance(1.5)), case_of(PROFILE)


def written(tmp_path, document):
    """A calibration file."""
    path = tmp_path / "measured.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_calibration(path)


def test_one_row_is_met_and_others_move_with_it(tmp_path):
    """The factor is the row's ratio; the evidence is now of this engine on this GPU."""
    file = written(tmp_path, [{"phase": "decode", "requests": 88, "kv_tokens": 4989, "tpot_ms": 40}])
    case, evidence, correction = calibrate(DECODE, NONE, file)

    assert 88 / saturated_rate(case) == pytest.approx(0.040)
    assert evidence.family == "same engine and GPU"
    assert (correction.num_rows, correction.error_after) == (1, pytest.approx(0, abs=1e-9))
    assert correction.error_before == pytest.approx(1 - 1 / correction.factor)
    assert calibrate(PREFILL, NONE, file)[2] is None


@pytest.mark.parametrize(
    "document",
    [
        {"mean_tpot_ms": 60, "random_input_len": 4000, "random_output_len": 1000, "request_throughput": 3},
        '{"mean_tpot_ms": 55}\n{"mean_tpot_ms": 65}\n',
        {"inter_token_latency": {"avg": 60, "unit": "ms"}, "time_to_first_token": {"avg": 900}},
    ],
)
def test_what_benchmarks_write_is_read(document, tmp_path):
    """SGLang's, alone and by lines, and aiperf's: TPOT of decode."""
    _, _, correction = calibrate(DECODE, NONE, written(tmp_path, document))

    assert correction.factor < 1
    assert correction.error_after < 0.1


def test_figures_stay_numbers_over_the_whole_range(tmp_path):
    """At its slow end a rate and its error are finite and above 0."""
    row = {"phase": "decode", "kv_tokens": 1e9, "tpot_ms": 1e9, "requests": 1e-6}
    case, _, correction = calibrate(DECODE, NONE, written(tmp_path, [row]))

    assert 0 < saturated_rate(case) < math.inf
    assert math.isfinite(correction.error_before)


@pytest.mark.parametrize(
    "row", [{"tpot_ms": 0.0476}, {"tpot_ms": 1e-6, "requests": 1e9}, {"tokens_per_s_per_gpu": 1e9}]
)
def test_what_no_kernel_could_keep_up_with_is_refused(row, tmp_path):
    """Seconds where ms are meant, and figures of a whole cluster."""
    with pytest.raises(CallError, match="is over 10 times as fast as kernels with nothing between them"):
        calibrate(DECODE, NONE, written(tmp_path, [{"phase": "decode"} | row]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(20, 500), min_size=1, max_size=6))
def test_a_range_holds_every_measurement(tmp_path, times_ms):
    """However far they are apart; it is 10 % each way at least."""
    rows = [{"phase": "decode", "requests": 88, "kv_tokens": 4989, "tpot_ms": each} for each in times_ms]
    case, evidence, _ = calibrate(DECODE, NONE, written(tmp_path, rows))
    rates = predict(case, evidence).tokens_per_s_per_gpu

    assert all(rates.low * ALMOST <= 88e3 / each <= rates.high / ALMOST for each in times_ms)
    assert rates.low <= 0.9 * rates.mid / ALMOST
    assert rates.high >= 1.1 * rates.mid * ALMOST


def test_a_measurement_may_be_of_prompts_that_no_cache_had(tmp_path):
    """A share of 0 is one."""
    row = {"phase": "prefill", "cache_hit_rate": 0, "tokens_per_s_per_gpu": 7100}

    assert calibrate(PREFILL, NONE, written(tmp_path, [row]))[2].num_rows == 1


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        ("[]", "S915", "it has none"),
        ("no json", "S915", "Expecting value"),
        ('[{"phase": "train", "tpot_ms": 3}]', "S915", 'phase is "train"'),
        ('[{"phase": "decode", "tpot_ms": -3}]', "S915", "tpot_ms is -3, and must be a number from 1e-06 to 1e+09"),
        ('[{"phase": "decode", "tpot_ms": true}]', "S915", "tpot_ms is true, and must be a number"),
        ('[{"phase": "decode", "tpot_ms": 1e-320}]', "S915", "tpot_ms is 1e-320, and"),
        ('[{"phase": "decode", "tpot_ms": 1e-305}, {"phase": "decode", "tpot_ms": 1e305}]', "S915", "is 1e-305, and"),
        ('[{"phase": "prefill", "tokens_per_s_per_gpu": 5e-324}]', "S915", "tokens_per_s_per_gpu is 5e-324, and"),
        ('[{"phase": "prefill", "tokens_per_s_per_gpu": 1e308}]', "S915", "tokens_per_s_per_gpu is 1e+308, and"),
        ('[{"phase": "decode", "tpot_ms": NaN}]', "S915", "tpot_ms is NaN, and"),
        ('[{"phase": "prefill", "cache_hit_rate": 2, "tokens_per_s_per_gpu": 9}]', "S915", "cache_hit_rate is 2, and"),
        ('{"inter_token_latency": {"avg": 5, "unit": "s"}}', "S915", 'inter_token_latency.unit is "s", and must be ms'),
        (
            '{"mean_tpot_ms": 5, "random_input_len": 1e308, "random_output_len": 1}',
            "S915",
            "random_input_len is 1e+308",
        ),
        (f"[{'{},' * 1000}{{}}]", "S915", "it has 1,001 rows, and at most 1,000 are read"),
        ('[{"phase": "prefill", "tpot_ms": 3}]', "S915", "a row has tokens_per_s_per_gpu"),
        ('[{"phase": "decode", "tpot_ms": 3, "batch": 4}]', "S915", "batch: not known"),
        ("[3]", "S915", "3 is no measurement"),
        ('[{"phase": "decode", "tpot_ms": 50, "phase": "mixed"}]', "S915", "an object in it has the same key twice"),
        (
            '{"mean_tpot_ms": 50}\n{"mean_tpot_ms": 50, "mean_tpot_ms": 5}',
            "S915",
            "an object in it has the same key twice",
        ),
        ('{"inter_token_latency": 3}', "S915", "inter_token_latency.avg is null"),
        ('[{"phase": "mixed", "tpot_ms": 50}]', "S915", "its rows are of mixed, and the plan has prefill and decode"),
        ("\udcff", "S915", "it is no text in UTF-8"),
        (None, "S914", "No such file"),
    ],
)
def test_what_is_no_measurement_is_refused(text, rule, says, tmp_path, capsys):
    """Exit status 2, with the reason and no traceback."""
    path = tmp_path / "measured.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    status = main(["plan", str(SPEC), "--calibration", str(path)])
    error = capsys.readouterr().err

    assert status == 2
    assert says in error
    assert rule in error


def test_a_plan_says_which_file_was_used(tmp_path, capsys):
    """In JSON with its digest, factor, and error before and after."""
    path = tmp_path / "measured.json"
    path.write_text('[{"phase": "decode", "tpot_ms": 47.6}]')
    main(["plan", str(SPEC), "--calibration", str(path), "--format", "json"])
    decode = json.loads(capsys.readouterr().out)["performance"]["decode"]

    assert decode["latency_ms"]["mid"] == pytest.approx(47.6, rel=1e-3)
    assert decode["calibration"]["digest"].startswith("sha256:")
    assert decode["calibration"]["error_after"] < decode["calibration"]["error_before"]
    assert decode["evidence"]["family"] == "same engine and GPU"

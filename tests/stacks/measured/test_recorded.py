"""Recorded loads, from ranks' metrics and from a Prometheus; both answer from a small server here."""

import json
import re
import socket
import threading
import time
from base64 import b64decode
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from planner.facts.loads import MAX_LOAD, read_loads
from planner.problems.printable import without_secrets
from stacks import cli
from stacks.measured import recorded
from stacks.measured.recorded import METRIC, QUERY, RecordedError, read_recorded
from stacks.measured.samples import fetch

LABELS = ("model_name", "unit", "rank", "moe_layer", "slot", "expert")
ODD = 'a "model", {odd} \\ one'


def slots(rank, experts, model="m"):
    """Samples of a rank: two MoE layers, a slot for each of `experts`; its rows are its number, and 10 more a layer."""
    return [
        ((model, "mixed-0", str(rank), str(layer), str(slot), str(expert)), 10 * layer + expert)
        for layer in range(2)
        for slot, expert in enumerate(experts)
    ]


def text_of(samples):
    registry = CollectorRegistry()
    rows = Counter(METRIC, "Rows computed.", LABELS, registry=registry)
    for labels, count in samples:
        rows.labels(*labels).inc(count)
    return generate_latest(registry)


def answer_of(samples):
    series = [{"metric": dict(zip(LABELS, labels, strict=True)), "value": [1.5, str(n)]} for labels, n in samples]
    return result_of(series)


def odd_answer(value="1", **labels):
    """A Prometheus' answer of one sample, with some labels otherwise."""
    metric = dict(zip(LABELS, ("m", "u", "0", "0", "0", "0"), strict=True)) | labels
    return result_of([{"metric": metric, "value": [1.5, value]}])


def result_of(result):
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


PAGES = {
    "/0/metrics": text_of(slots(0, [0, 1])),
    "/1/metrics": text_of(slots(1, [1, 2])),
    "/odd/metrics": text_of(slots(0, [0], ODD)),
    "/none/metrics": b"# HELP up\nup 1\n",
    "/huge/metrics": text_of([(("m", "u", "0", "99999999", "0", "0"), 1)]),
    "/prometheus/api/v1/query": answer_of(slots(0, [0, 1]) + slots(1, [1, 2])),
    "/html/api/v1/query": b"<html>",
    "/list/api/v1/query": b"[]",
    "/nan/api/v1/query": answer_of([(labels, "NaN") for labels, _ in slots(0, [0])]),
    "/list-unit/api/v1/query": odd_answer(unit=[]),
    "/object-rank/api/v1/query": odd_answer(rank={}),
    "/null-model/api/v1/query": odd_answer(model_name=None),
    "/number-layer/api/v1/query": odd_answer(moe_layer=1.5),
    "/true-expert/api/v1/query": odd_answer(expert=True),
    "/number-rows/api/v1/query": odd_answer(7),
    "/most/api/v1/query": odd_answer(str(MAX_LOAD)),
    "/over/api/v1/query": odd_answer("1e308"),
    "/over/metrics": text_of([(("m", "u", "0", "0", "0", "0"), 1e308)]),
}
asked, authorized = [], []


@pytest.fixture(scope="module")
def url():
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            authorized.append(self.headers.get("Authorization"))
            page = PAGES.get(urlsplit(self.path).path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_loads_are_those_of_all_ranks_together(url):
    """Expert 1 has a replica on both ranks; its rows are added up."""
    found = read_recorded([f"{url}/0/metrics", f"{url}/1/metrics"])

    assert found.loads == ((0, 2, 2), (10, 22, 12))
    assert found.num_ranks == 2


def test_a_prometheus_is_asked_once_for_all(url):
    """It answers as the ranks themselves do."""
    found = read_recorded([f"{url}/prometheus"])

    assert found == read_recorded([f"{url}/0/metrics", f"{url}/1/metrics"])
    assert parse_qs(urlsplit(asked[-3]).query) == {"query": [QUERY]}


def test_what_is_saved_is_what_the_planner_reads(url, tmp_path, capsys):
    """The file's loads come out of `read_loads` as they went in."""
    file = tmp_path / "loads.json"
    status = cli.main(["experts", "--from", f"{url}/0/metrics", f"--from={url}/1/metrics", "-o", str(file)])

    assert status == 0
    assert read_loads(file, "loads.json").loads == ((0, 2, 2), (10, 22, 12))
    assert capsys.readouterr().out == f"{file}: 48 rows of 3 experts in 2 MoE layers, from 2 ranks\n"


def test_a_models_name_is_any_text(url):
    """Prometheus' quoting is read; the name chooses among several models."""
    urls = [f"{url}/0/metrics", f"{url}/odd/metrics"]

    assert read_recorded(urls, model="m").loads == ((0, 1), (10, 11))
    with pytest.raises(RecordedError, match="R114"):
        read_recorded(urls)
    with pytest.raises(RecordedError, match="R114"):
        read_recorded(urls[:1], model="n")
    assert read_recorded(urls[1:]).num_rows == 10


@pytest.mark.parametrize(
    ("page", "rule", "reason"),
    [
        ("/1/metrics", "R115", "no samples of expert 0 in MoE layer 0, nor of 1 more"),
        ("/none/metrics", "R113", "there are none at"),
        ("/gone/metrics", "R112", "it answers with status 404"),
        ("/html", "R112", "its answer is neither"),
        ("/list", "R112", "its answer is neither"),
        ("/nan", "R112", "cannot convert float NaN to integer"),
        ("/huge/metrics", "R112", "expert 0 of MoE layer 99999999 cannot have 1 rows"),
        ("/list-unit", "R112", "its labels and values must be text"),
        ("/object-rank", "R112", "its labels and values must be text"),
        ("/null-model", "R112", "its labels and values must be text"),
        ("/number-layer", "R112", "its labels and values must be text"),
        ("/true-expert", "R112", "its labels and values must be text"),
        ("/number-rows", "R112", "its labels and values must be text"),
        ("/over", "R112", "expert 0 of MoE layer 0 cannot have 1e+308 rows"),
        ("/over/metrics", "R112", "expert 0 of MoE layer 0 cannot have 1e+308 rows"),
    ],
)
def test_what_is_no_record_is_said(url, page, rule, reason):
    """In one sentence, and nothing is written."""
    with pytest.raises(RecordedError) as error:
        read_recorded([url + page])

    (problem,) = error.value.findings
    assert problem.rule.startswith(rule)
    assert reason in problem.reason


def test_loads_are_no_more_than_the_planner_reads(url):
    """The largest count of one rank is taken; with another's it is too large for a file of loads."""
    assert read_recorded([f"{url}/most"]).loads == ((MAX_LOAD,),)
    with pytest.raises(RecordedError, match=r"samples of one expert sum to 1\.8e\+16 rows.*R112"):
        read_recorded([f"{url}/most", f"{url}/most"])


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/metrics", "ftp://127.0.0.1/metrics", "metrics", "http://[/metrics"]
)
def test_where_nobody_answers_is_said(url):
    """A closed port, another protocol, and what is no URL."""
    with pytest.raises(RecordedError, match="R112"):
        read_recorded([url])


@contextmanager
def answering(*pieces, pause_s=0.0):
    """The address of a server that says these, the last one for ever."""

    def answer(server):
        with suppress(OSError), server.accept()[0] as caller:
            for piece in chain(pieces, repeat(pieces[-1])):
                caller.sendall(piece)
                time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "pause_s", "why"),
    [
        ((b"H",), 0.02, "its answer is not whole within 0.3 s"),
        ((HEAD, b"A: b\r\n"), 0.02, "its answer is not whole within 0.3 s"),
        ((HEAD + b"\r\n", b"x"), 0.02, "its answer is not whole within 0.3 s"),
        ((HEAD + b"\r\n", b"x" * 4096), 0.0, "its answer has more than 65,536 bytes"),
    ],
    ids=["a slow line", "a slow head", "a slow body", "a body without end"],
)
def test_an_answer_without_end_ends(monkeypatch, pieces, pause_s, why):
    """One deadline holds for the whole answer, and so does a size."""
    monkeypatch.setattr(recorded, "DEADLINE_S", 0.3)
    monkeypatch.setattr(recorded, "MAX_ANSWER_BYTES", 2**16)
    with answering(*pieces, pause_s=pause_s) as url, pytest.raises(RecordedError, match=f"{why}.*R112"):
        read_recorded([url])


@pytest.mark.parametrize(
    "address",
    ["{}/none/metrics", "{}/gone/metrics", "http://127.0.0.1:1/metrics", "http://[/metrics", "ftp://{}", "h/x"],
)
def test_no_message_has_an_addresss_password(url, address):
    """Logs and screens are read by others; the user is not said either."""
    scheme, _, rest = address.format(url).rpartition("//")
    with pytest.raises(RecordedError, match=r"R11[23]") as error:
        read_recorded([f"{scheme}//eve:s3cr/et@{rest}" if scheme else f"eve:s3cret@{rest}"])

    assert not re.search(r"eve|s3cr|et@", str(error.value))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://h/metrics#hunter2", "http://h/metrics"),
        ("http://eve:hunter2@h/metrics?token=hunter2#hunter2", "http://h/metrics"),
        ("https://h/metrics#?hunter2", "https://h/metrics"),
        ("http://h?token=a@hunter2", "http://..."),
        ("http://eve:hun#ter2@h", "http://..."),
        ("eve:hun?ter2@h", "..."),
        ("http://eve:hunter2%40h/metrics", "http://h/metrics"),
        ("http://eve:hunter2\N{FULLWIDTH COMMERCIAL AT}h", "http://h"),
        ("http://h:9090/a", "http://h:9090/a"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address, shown):
    """User, password, query and fragment are cut; where an @ leaves in doubt what is which, all of it."""
    assert without_secrets(address) == shown


def test_a_password_is_sent_to_whom_it_is_for(url):
    """As the address says; some put a Prometheus behind one."""
    read_recorded([url.replace("//", "//eve:s%20t@") + "/0/metrics"])

    assert b64decode(authorized[-1].removeprefix("Basic ")) == b"eve:s t"


def test_a_page_that_drips_is_given_up():
    """Whoever looks every second waits no longer for one page than it may take whole."""
    with (
        answering(HEAD + b"\r\n", b"x", pause_s=0.02) as url,
        pytest.raises(ValueError, match=r"does not end within 0\.2 s"),
    ):
        fetch(url, timeout_s=0.2, max_bytes=2**16)

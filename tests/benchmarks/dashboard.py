"""The dashboard's queries, answered by a real Prometheus that scrapes the running demo.

    apt-get install --no-install-recommends prometheus
    python -m tests.benchmarks.dashboard

Every query of `docs/grafana-dashboard.json` must have a value that is a number, while a few clients ask the demo; but
not those of disks and of units in trouble, of which the demo has none. The loads that `tidemill experts --from` reads
from this Prometheus must be those that it reads from the ranks themselves.
Exits with 1 otherwise; nothing is timed. About a minute.
"""

import json
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

from openai import OpenAI

from stacks.measured.recorded import read_recorded
from tests.benchmarks.goals import Goals
from tests.stacks.deployments import REPOSITORY, Tidemill, get_json, listening, wait_until

HOST = "127.79.3.1"  # beside those of the tests
PROMETHEUS = "127.79.3.200:9090"
SCRAPE_S, MEASURED_S, CLIENTS = 1, 15, 3
ABSENT = re.compile("_disk_|unit_straggler|unit_refused")
WINDOW = "10s"  # what Grafana puts in place of $__rate_interval


def main():
    """Bring all up, ask the queries, and hold the answers against the goals."""
    goals = Goals()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = Tidemill(HOST, folder / "state")
        done = demo.up()
        if done.returncode:
            raise SystemExit(done.stderr)
        try:
            metrics = [address for address in listening(demo.processes()) if is_metrics(address)]
            with scraping(metrics, folder):
                asked(demo)
                for query, values in answered():
                    if ABSENT.search(query):
                        continue
                    goals.check(query, sum(map(math.isfinite, values)), ">=", 1)
                time.sleep(3 * SCRAPE_S)  # the last scrape is after the last token
                of_ranks = [f"http://{host}:{port}/metrics" for host, port in metrics if host != HOST]
                recorded, direct = read_recorded([f"http://{PROMETHEUS}"]), read_recorded(of_ranks)
                goals.check("rows that experts --from reads from it", recorded.num_rows, "==", direct.num_rows)
                goals.check("ranks that told of them", recorded.num_ranks, "==", len(of_ranks))
        finally:
            demo.run("down")
    return goals.report()


def is_metrics(address):
    _, port = address
    return 9400 <= port < 9500


@contextmanager
def scraping(metrics, folder):
    """A Prometheus of these metrics, while the block runs."""
    targets = [f"{host}:{port}" for host, port in metrics]
    jobs = [{"job_name": "tidemill", "static_configs": [{"targets": targets}]}]
    file = folder / "prometheus.yml"
    file.write_text(json.dumps({"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": jobs}))
    words = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    process = subprocess.Popen([*words, f"--web.listen-address={PROMETHEUS}", "--log.level=error"])
    try:
        wait_until(lambda: is_up() or process.poll() is not None)
        yield
    finally:
        process.terminate()
        process.wait()


def is_up():
    with suppress(OSError), urllib.request.urlopen(f"http://{PROMETHEUS}/-/ready", timeout=10) as answer:
        return answer.status == 200
    return False


def asked(demo):
    """Ask for answers, one after another, as long as is measured."""
    until = time.monotonic() + MEASURED_S

    def ask(number):
        client = OpenAI(base_url=f"http://{demo.host}:8000/v1", api_key="none", max_retries=0)
        while time.monotonic() < until:
            client.completions.create(model="tidemill-demo", prompt=f"The mill {number} " * 9, max_tokens=24)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()


def answered():
    """(query, its values) of each query, as the dashboard writes it."""
    dashboard = json.loads((REPOSITORY / "docs" / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            asked = target["expr"].replace("$__rate_interval", WINDOW).replace("$model", ".*")
            found = get_json(f"http://{PROMETHEUS}/api/v1/query?{urllib.parse.urlencode({'query': asked})}")
            values = [float(series["value"][1]) for series in found["data"]["result"]]
            print(f"{len(values):4} values, the first {values[0] if values else 'none'}: {target['expr']}")
            yield target["expr"], values


if __name__ == "__main__":
    sys.exit(main())

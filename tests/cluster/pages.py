"""Someone who does what a page of the documentation says: its blocks run as written, against a real Gitea.

What a page takes for granted stands in: a Prometheus, which has what ranks recorded and what traffic there was.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from planner.facts.drawn import draw_loads
from tests.stacks.deployments import REPOSITORY, wait_until

__all__ = ["Prometheus", "Reader", "read_blocks", "running_prometheus"]

TIDEMILL = f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m stacks.cli "$@"\n'


def read_blocks(page, section):
    """Return the language and text of each block below a heading of `docs/PAGE`."""
    text = (REPOSITORY / "docs" / page).read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.M | re.S)
    return [(language, textwrap.dedent(block)) for language, block in found]


class Prometheus(BaseHTTPRequestHandler):
    """Answers a range query with tokens by the hour, and any other with loads of R1's experts, drawn with `seed`."""

    seed = 7

    def log_message(self, *_):
        pass

    def do_GET(self):
        if urlsplit(self.path).path.endswith("query_range"):
            return self.answer([{"metric": {}, "values": list(self.hours())}])
        labels = {"model_name": "deepseek-r1", "unit": "decode-0", "rank": "0"}
        result = [
            {"metric": labels | {"moe_layer": str(layer), "expert": str(expert)}, "value": [0, str(int(1000 * load))]}
            for layer, row in enumerate(draw_loads(1.01, self.seed, 58, 256, 8))
            for expert, load in enumerate(row)
        ]
        return self.answer(result)

    def hours(self):
        """Return an hour's tokens at each step: more by day than by night."""
        asked = {name: int(value) for name, (value,) in parse_qs(urlsplit(self.path).query).items() if name != "query"}
        for at in range(asked["start"], asked["end"] + 1, asked["step"]):
            hour = at // 3600 % 24
            yield at, str(5e8 if 8 <= hour < 22 else 1e8)

    def answer(self, result):
        content = json.dumps({"data": {"result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def running_prometheus(handler=Prometheus) -> Iterator[str]:
    """Start the stand-in, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Reader:
    """Someone who runs a page's commands as written, at a forge to which they have pushed before."""

    def __init__(self, gitea, folder, name, stood_for):
        self.gitea, self.folder = gitea, folder
        self.address = gitea.create_repository(name)
        self.repository = f"/repos/{self.address.split('/', 3)[3].removesuffix('.git')}"
        self.stood_for = {"export TIDEMILL_TOKEN=...": ""} | stood_for
        programs = folder / "programs"
        programs.mkdir()
        (programs / "tidemill").write_text(TIDEMILL)
        (programs / "tidemill").chmod(0o755)
        header = f"Authorization: token {gitea.token}"
        identity = {"user.name": "Ada", "user.email": "ada@mill.example", "http.extraHeader": header}
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TIDEMILL_TOKEN": gitea.token,
            "GIT_CONFIG_COUNT": str(len(identity)),
            **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(identity)},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(identity.values())},
        }

    def run(self, block, folder):
        for written, stood_for in self.stood_for.items():
            block = block.replace(written, stood_for)
        block = re.sub(r"https://git\.example/team/\w+\.git", self.address, block)
        call = ["bash", "-ec", block]
        done = subprocess.run(call, cwd=folder, env=self.environment, check=False, capture_output=True, text=True)

        assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}"
        return done.stdout

    def wait_for_push(self):
        wait_until(lambda: not self.gitea.ask("GET", self.repository)["empty"])

    def protect_main(self):
        rule = {"rule_name": "main", "enable_push": True, "block_on_outdated_branch": True}
        self.gitea.ask("POST", f"{self.repository}/branch_protections", rule)

    def merge(self, number):
        pull = f"{self.repository}/pulls/{number}"
        self.gitea.merge(pull, "merge")
        return self.gitea.ask("GET", pull)

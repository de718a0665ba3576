"""Running the real Pulumi CLI on a program, with a home and a state of its own.

The engine, its Python host and our provider are the real ones; the state is in files, and nothing is downloaded.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Preview", "Pulumi", "Run"]

STACK = "test"
COMMAND_TIMEOUT_S = 900
ERROR_LIST = re.compile(r"error: \d+ errors? occurred:")

# A program that makes an Object of each manifest in `program.json`, or of its namespaces, and Objects of the others.
PLUGIN = Path(__file__).parents[2] / "stacks" / "provider"
PROJECT = f"name: objects\nruntime: python\nplugins: {{providers: [{{name: tidemill, path: {PLUGIN}}}]}}\n"
PROGRAM = """
import json
from pathlib import Path

import pulumi

from stacks.provider.resource import Object, Objects, Provider

given = json.loads((Path(__file__).parent / "program.json").read_text())
options = pulumi.ResourceOptions(provider=Provider("cluster", given["context"], given["kinds"]))
timeouts = pulumi.CustomTimeouts(**given["timeouts"])
made = {}
together = {}
for name, manifest in given["manifests"].items():
    if given["together"] and manifest["kind"] != "Namespace":
        together[manifest["kind"]] = manifest
        continue
    if name in given["secrets"]:
        manifest["data"] = {key: pulumi.Output.secret(value) for key, value in manifest["data"].items()}
    namespace = made.get(manifest["metadata"].get("namespace"))
    waits = pulumi.ResourceOptions(depends_on=namespace, custom_timeouts=timeouts)
    made[name] = Object(name, manifest, pulumi.ResourceOptions.merge(options, waits))
if together:
    waits = pulumi.ResourceOptions(depends_on=list(made.values()), custom_timeouts=timeouts)
    Objects("together", together, pulumi.ResourceOptions.merge(options, waits))
"""


@dataclass(frozen=True)
class Run:
    """One finished command."""

    status: int
    output: str  # stdout and stderr, as a user sees them

    @property
    def errors(self) -> list[str]:
        """What the diagnostics at the end call an error; several reasons of one resource are one entry each."""
        found, is_list = [], False
        for line in map(str.strip, self.output.partition("\nDiagnostics:\n")[2].splitlines()):
            is_list = ERROR_LIST.fullmatch(line) is not None or (is_list and line.startswith("* "))
            if is_list and line.startswith("* "):
                found.append(line.removeprefix("* "))
            elif not is_list and line.startswith("error: "):
                found.append(line.removeprefix("error: "))
        return [each for each in found if each not in ("update failed", "preview failed")]


@dataclass(frozen=True)
class Preview:
    """What a preview foresees."""

    status: int
    document: dict[str, Any]

    @property
    def steps(self) -> dict[str, str]:
        """Resource name -> operation, for those that something happens to."""
        steps = ((each["urn"].rpartition("::")[2], each["op"]) for each in self.document.get("steps", []))
        return {name: operation for name, operation in steps if operation not in ("same", "refresh")}

    @property
    def changes(self) -> dict[str, dict[str, str]]:
        """Resource name -> path -> kind of change, for those that are updated or replaced."""
        return {
            each["urn"].rpartition("::")[2]: {path: diff["kind"] for path, diff in each["detailedDiff"].items()}
            for each in self.document.get("steps", [])
            if each.get("detailedDiff") and each["op"] != "refresh"
        }

    @property
    def errors(self) -> list[str]:
        """What is wrong, without colour."""
        texts = (each.removeprefix("error: ") for each in self._diagnostics("error"))
        return [each.removeprefix("Preview failed: ") for each in texts if each != "preview failed"]

    @property
    def warnings(self) -> list[str]:
        """What the user is warned of."""
        return [each.removeprefix("warning: ") for each in self._diagnostics("warning")]

    def _diagnostics(self, severity: str) -> list[str]:
        found = self.document.get("diagnostics", [])
        return [each["message"].strip() for each in found if each["severity"] == severity]


@dataclass
class Pulumi:
    """A stack of the program in `program`, which holds `Pulumi.yaml`."""

    executable: Path  # the CLI; its Python host lies beside it
    program: Path
    home: Path  # of this stack: plugins, settings, state
    kubeconfig: Path | str
    environment: dict[str, str] = field(default_factory=dict)
    host_folders: tuple[Path, ...] = ()  # of languages whose hosts do not lie beside the CLI

    @classmethod
    def of_manifests(cls, executable: Path, folder: Path, kubeconfig: Path | str) -> "Pulumi":
        """A new stack in `folder` whose program makes what `set_manifests` gives it."""
        program = folder / "program"
        program.mkdir(parents=True)
        (program / "Pulumi.yaml").write_text(PROJECT)
        (program / "__main__.py").write_text(PROGRAM)
        made = cls(executable, program, folder / "home", kubeconfig)
        made.init()
        return made

    @classmethod
    def of_yaml(
        cls, executable: Path, host: Path, folder: Path, kubeconfig: Path | str, inputs: Mapping[str, Any]
    ) -> "Pulumi":
        """A new stack in `folder` of a YAML program, run by `host`: the `tidemill:Deployment` llm, and its outputs."""
        program = folder / "program"
        program.mkdir(parents=True)
        outputs = {name: f"${{llm.{name}}}" for name in ("endpoint", "planDigest", "units", "verdict")}
        document = {
            "name": "component",
            "runtime": "yaml",
            "plugins": {"providers": [{"name": "tidemill", "path": str(PLUGIN)}]},
            "resources": {"llm": {"type": "tidemill:Deployment", "properties": dict(inputs)}},
            "outputs": outputs,
        }
        (program / "Pulumi.yaml").write_text(json.dumps(document))
        made = cls(executable, program, folder / "home", kubeconfig, host_folders=(host.parent,))
        made.init()
        return made

    def set_manifests(
        self,
        *manifests: Any,
        kinds: Sequence[str] = (),
        context: str | None = None,
        secrets: Sequence[str] = (),
        together: bool = False,
        **timeouts: str,
    ) -> None:
        """Objects under their own names; those in a namespace of the program wait for it.

        The data of those named in `secrets` are secret. With `together`, all but namespaces are one resource.
        """
        named = {each["metadata"]["name"]: each for each in manifests}
        given = {
            "manifests": named,
            "kinds": list(kinds),
            "context": context,
            "secrets": [*secrets],
            "together": together,
            "timeouts": timeouts,
        }
        (self.program / "program.json").write_text(json.dumps(given))

    def init(self) -> None:
        """Make home and stack."""
        (self.home / "state").mkdir(parents=True)
        (self.home / "logs").touch()  # a file: into a folder the engine logs all it does, at the cost of half its time
        made = self.run("stack", "init", STACK)
        assert made.status == 0, made.output

    def preview(self, *flags: str) -> Preview:
        """Foresee; `--json` has each resource's detailed difference."""
        done = self._finish("preview", "--json", *flags, stderr=subprocess.PIPE)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        return Preview(done.returncode, json.loads(done.stdout))

    def up(self, *flags: str) -> Run:
        """Without a preview before it, and without asking."""
        return self.run("up", "--yes", "--skip-preview", *flags)

    def destroy(self, *flags: str) -> Run:
        """The same for the way back."""
        return self.run("destroy", "--yes", "--skip-preview", *flags)

    def resources(self) -> Iterator[dict[str, Any]]:
        """What the state holds, without the stack itself."""
        state = json.loads(self._finish("stack", "export", stderr=subprocess.PIPE).stdout)
        found = state["deployment"].get("resources", [])
        return (each for each in found if not each["type"].startswith("pulumi:"))

    def run(self, *words: str) -> Run:
        """Any command."""
        done = self._finish(*words, stderr=subprocess.STDOUT)
        return Run(done.returncode, done.stdout)

    def start(self, *words: str, stderr: int = subprocess.STDOUT) -> "subprocess.Popen[str]":
        """Any command, not awaited."""
        command = [self.executable, *words, "--non-interactive", "--color", "never"]
        return subprocess.Popen(
            command,
            cwd=self.program,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=_heed_interrupts,
        )

    def _finish(self, *words: str, stderr: int) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words, stderr=stderr)
        output, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def _environment(self) -> dict[str, str]:
        """The tests' own, so that a program imports what the tests do, with the provider beside this Python first."""
        folders = [Path(sys.executable).parent, self.executable.parent, *self.host_folders, os.environ["PATH"]]
        return (
            os.environ
            | {
                "KUBECONFIG": str(self.kubeconfig),
                "PATH": os.pathsep.join(map(str, folders)),
                "PULUMI_BACKEND_URL": f"file://{self.home / 'state'}",
                "PULUMI_CONFIG_PASSPHRASE": "test",
                "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "1",
                "PULUMI_HOME": str(self.home),
                "PULUMI_SKIP_UPDATE_CHECK": "1",
                "PULUMI_STACK": STACK,
            }
            | self.environment
        )


def _heed_interrupts() -> None:
    """Of a background job they are ignored, and so by all its children; the engine ends its own by them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

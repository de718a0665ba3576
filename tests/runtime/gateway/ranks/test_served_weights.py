"""Units with other weights or another tokenizer get no requests, with the reason visible."""

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from runtime.errors import RuntimeFailure
from runtime.gateway.ranks.rank_load import RankLimits, RequestSize
from runtime.gateway.ranks.registry import Registry
from runtime.gateway.ranks.served_tokenizer import ServedTokenizer
from runtime.gateway.ranks.served_weights import ServedWeights
from runtime.gateway.telemetry.phase_loads import PhaseLoads
from runtime.protocol.messages import Hello, State, Wait
from runtime.worker.gateway_connection import GatewayAddress, GatewayLink

HOST, KV = "127.0.0.1", "sha256:kv"
OLD, NEW = f"{KV}-with-old-weights", f"{KV}-with-new-weights"
OURS, THEIRS = "sha256:ours", "sha256:theirs"  # digests of tokenizer.json
SIZE = RequestSize(4, 4)
PATIENCE_S = 20


async def wait_until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


class Gateway:
    """A registry at its own port, with a `file` to remember in."""

    def __init__(self, file=None):
        limits, tokenizer = RankLimits(4, 4096, 0), ServedTokenizer(OURS)
        self.registry = Registry(KV, limits, 30.0, weights_file=file, tokenizer=tokenizer)
        self.ranks = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.registry.serve, HOST, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.registry.close()

    def states(self):
        """Return unit -> its ranks' states in /readyz."""
        return {unit["unit"]: [rank["state"] for rank in unit["ranks"]] for unit in self.registry.report()["units"]}

    def refusals(self):
        """Return unit -> why it gets no requests."""
        return {unit["unit"]: unit["refused"] for unit in self.registry.report()["units"] if "refused" in unit}


class Rank:
    """A rank's own line to a gateway.

    `loaded` is the digest that it finds, None where the plan names the weights; `tokenizer` that of its tokenizer.json.
    """

    def __init__(self, gateway, phase, unit=None, *, rank=0, num_ranks=1):
        at = (HOST, 29600) if phase == "decode" else (None, None)
        self.unit, self.gateway, self.heard = unit or f"{phase}-0", gateway, []
        self.hello = Hello(self.unit, phase, rank, num_ranks, "node-0", 4711, "sha256:unit", KV, *at)
        self.link = GatewayLink(GatewayAddress(HOST, gateway.port), self.hello, self.heard.append)
        self.task = asyncio.create_task(self.link.run())
        gateway.ranks.append(self)  # else the garbage collection may end the task of one that no test holds

    async def become_ready(self, loaded, tokenizer=None):
        """Report ready, and return once the gateway has heard it."""
        self.link.say_hello_again(self.hello.add_loaded_digests(loaded or KV, tokenizer))
        self.link.say_state(State("ready"))
        await wait_until(lambda: self.unit in self.gateway.states())
        await wait_until(lambda: {"loading", "lost"}.isdisjoint(self.gateway.states()[self.unit]))

    async def ends(self):
        self.task.cancel()
        await wait_until(lambda: "lost" in self.gateway.states()[self.unit])


async def start_rank(gateway, phase, loaded, unit=None, tokenizer=None):
    rank = Rank(gateway, phase, unit)
    await rank.become_ready(loaded, tokenizer)
    return rank


def run(use, file=None):
    async def with_gateway():
        async with Gateway(file) as gateway:
            return await use(gateway)

    return asyncio.run(with_gateway())


@pytest.mark.parametrize("loaded", [OLD, None])
def test_units_that_loaded_the_same_serve_together(loaded):
    """Units that loaded the same weights serve together, also if the plan names them."""

    async def use(gateway):
        ranks = [await start_rank(gateway, phase, loaded) for phase in ("prefill", "decode")]
        return gateway.registry.report()["ready"], gateway.refusals(), [rank.heard for rank in ranks]

    assert run(use) == (True, {}, [[], []])


@pytest.mark.parametrize(("first", "second"), [("prefill", "decode"), ("decode", "prefill"), ("mixed", "mixed")])
def test_a_unit_that_loaded_other_weights_gets_no_requests_and_says_why(first, second, caplog):
    """A unit with other weights gets no requests, and /readyz, log, metrics and its ranks say why."""

    async def use(gateway):
        await start_rank(gateway, first, OLD, "old")
        refused = await start_rank(gateway, second, NEW, "new")
        await wait_until(lambda: refused.heard)
        loads = PhaseLoads("tiny")
        loads.sample(gateway.registry.units())
        (metric,) = (each for each in loads.collect() if each.name == "tidemill_unit_refused")
        return gateway.registry.report()["ready"], gateway.refusals(), refused.heard, metric

    is_ready, refusals, heard, metric = run(use)
    reason = refusals["new"]

    assert is_ready == (first == "mixed")
    assert heard == [Wait(reason)]
    assert reason.startswith("it loaded other weights (sha256:kv-with-new-) than this deployment serves with")
    assert "start new again (here: kill 4711; in a cluster: kubectl delete pod new-0), or serve with it as " in reason
    assert [(sample.labels["unit"], sample.value) for sample in metric.samples] == [("new", 1)]
    assert f"rank 0 of unit new is refused: {reason}" in caplog.text


@pytest.mark.parametrize("loaded", [OLD, None])
@pytest.mark.parametrize("units", [("ours-0", "ours-1", "theirs-0"), ("theirs-0", "ours-0", "ours-1")])
def test_a_unit_that_read_another_tokenizer_gets_no_requests_and_says_why(units, loaded):
    """A unit with another tokenizer than most gets no requests and hears why."""

    async def use(gateway):
        ranks = {unit: await start_rank(gateway, "mixed", loaded, unit, f"sha256:{unit[:-2]}") for unit in units}
        await wait_until(lambda: ranks["theirs-0"].heard)
        return gateway.states(), gateway.refusals(), {unit: rank.heard for unit, rank in ranks.items()}

    states, refusals, heard = run(use)
    reason = refusals["theirs-0"]

    assert states == {"ours-0": ["ready"], "ours-1": ["ready"], "theirs-0": ["refused"]}
    assert reason.startswith(f"its tokenizer.json ({THEIRS}) is another than this gateway's ({OURS}), so answers in ")
    assert "start theirs-0 again (here: kill 4711; in a cluster: kubectl delete pod theirs-0-0), or" in reason
    assert heard == {"ours-0": [], "ours-1": [], "theirs-0": [Wait(reason)]}


def test_a_wrong_gateway_and_a_wrong_unit_take_no_unit_from_others():
    """If as many units agree with the gateway as do not, no unit is told that it is wrong."""

    async def use(gateway):
        ranks = [await start_rank(gateway, "mixed", OLD, unit, unit) for unit in (OURS, THEIRS)]
        return gateway.states(), [rank.heard for rank in ranks]

    assert run(use) == ({OURS: ["ready"], THEIRS: ["refused"]}, [[], []])


def test_a_gateway_that_no_rank_agrees_with_leaves_the_ranks_to_others():
    """A gateway with which no rank agrees is not ready, and tells no rank."""

    async def use(gateway):
        ranks = [await start_rank(gateway, "mixed", OLD, unit, THEIRS) for unit in ("a", "b")]
        await start_rank(gateway, "mixed", OLD, "reads none")
        return gateway.states(), [rank.heard for rank in ranks], gateway.refusals()["a"]

    states, heard, reason = run(use)

    assert states == {"a": ["refused"], "b": ["refused"], "reads none": ["ready"]}
    assert heard == [[], []]
    assert reason.endswith("kubectl delete pod a-0), or this gateway if its file was the wrong one")


def test_requests_go_to_the_units_that_have_the_first_weights():
    """Requests go to the units with the first weights, while others are refused."""

    async def use(gateway):
        for phase, unit in (("prefill", "p0"), ("decode", "d0"), ("decode", "d1")):
            await start_rank(gateway, phase, NEW if unit == "d1" else OLD, unit)
        chosen = [gateway.registry.choose_ranks(SIZE) for _ in range(4)]
        return gateway.states(), {rank.hello.unit for pair in chosen for rank in pair}

    assert run(use) == ({"p0": ["ready"], "d0": ["ready"], "d1": ["refused"]}, {"p0", "d0"})


def test_the_first_weights_count_when_nobody_is_left_who_loaded_them(tmp_path):
    """With a file the first weights count even after all units have restarted."""

    async def use(gateway):
        first = await start_rank(gateway, "mixed", OLD)
        await first.ends()
        second = await start_rank(gateway, "mixed", NEW)
        changed = gateway.states()
        await second.ends()
        await start_rank(gateway, "mixed", OLD)
        return changed, gateway.states()

    assert run(use, tmp_path / "weights") == ({"mixed-0": ["refused"]}, {"mixed-0": ["ready"]})


def test_without_a_file_the_first_weights_go_with_the_last_unit_that_loaded_them():
    """Without a file the first weights are forgotten with their last unit, and the refused units serve."""

    async def use(gateway):
        wrong = await start_rank(gateway, "mixed", NEW, "wrong")
        right = [await start_rank(gateway, "mixed", OLD, unit) for unit in ("a", "b")]
        await wait_until(lambda: all(rank.heard for rank in right))
        before = gateway.states()
        await wrong.ends()
        await wait_until(lambda: gateway.states() == {"a": ["ready"], "b": ["ready"], "wrong": ["lost"]})
        return before

    assert run(use) == {"a": ["refused"], "b": ["refused"], "wrong": ["ready"]}


def test_ranks_decide_nothing_before_their_unit_is_ready():
    """A unit decides the weights only once it is ready."""

    async def use(gateway):
        half = Rank(gateway, "mixed", "half", num_ranks=2)
        await half.become_ready(NEW)
        await start_rank(gateway, "mixed", OLD, "whole")
        return gateway.states()

    assert run(use) == {"half": ["refused"], "whole": ["ready"]}


def test_a_gateway_that_starts_again_remembers_by_its_file(tmp_path):
    """A restarted or second gateway reads the weights from the file."""

    async def adopt(gateway):
        await start_rank(gateway, "mixed", OLD)

    async def change(gateway):
        await start_rank(gateway, "mixed", NEW)
        return gateway.states()

    run(adopt, tmp_path / "weights")

    assert run(change, tmp_path / "weights") == {"mixed-0": ["refused"]}
    assert run(change) == {"mixed-0": ["ready"]}


def test_of_two_gateways_that_decide_at_once_the_first_does(tmp_path):
    """If two gateways decide at once, the first writes the file, and the second obeys it."""
    ranks = [Mock(loaded_digest=each, refusal=None) for each in (OLD, NEW)]
    gateways = [ServedWeights(tmp_path / "weights") for _ in ranks]
    for gateway, rank in zip(gateways, ranks, strict=True):
        gateway.check(rank, [rank], unit_is_ready=True)

    assert [gateway._digest for gateway in gateways] == [OLD, OLD]
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_file_that_cannot_be_read_keeps_the_gateway_from_starting(tmp_path):
    """A gateway does not start if its file cannot be read."""
    with pytest.raises(RuntimeFailure, match="cannot read what this deployment serves with from "):
        ServedWeights(tmp_path)


def test_a_full_disk_ends_nothing(tmp_path, caplog):
    """On a full disk the gateway remembers until it ends, and says so."""
    weights = ServedWeights(tmp_path / "missing" / "weights")
    rank = SimpleNamespace(loaded_digest=OLD, refusal=None)
    weights.check(rank, [rank], unit_is_ready=True)

    assert weights._digest == OLD
    assert "cannot remember the weights in " in caplog.text

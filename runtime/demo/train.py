"""Train the demo model: python -m runtime.demo.train --state DIR

Why it exists: Tidemill's tests and its one-machine demo need a model whose text is readable and whose expert load is
really uneven, small enough to commit. Random weights have neither.
It does not measure the result: `evaluate.py` does, on the exported folder.

Everything is decided by the step number (batch, sequence length, learning rate), so a run continues from its last
checkpoint as if it had not stopped. Checkpoints lie in --state, never in the repository.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from runtime.demo.corpus import PACKAGE_TEXT, SEED, read_documents, split, token_stream, train_tokenizer
from runtime.demo.export import export
from runtime.demo.network import MoE, Network
from runtime.demo.optimizer import Optimizer

FOLDER = Path(__file__).parent
STEPS = 2400
BLOCK = 2048  # tokens read together; a step may cut them into shorter sequences
BLOCKS_PER_STEP = 4
WARMUP_STEPS = 60
COOLDOWN_SHARE = 0.5  # of all steps: the rate falls linearly to zero, so that --steps can still be changed before it
BIAS_STEP, STARVED, OVERRUN = (
    0.002,
    0.3,
    3.0,
)  # loads over the layer's mean; DeepSeek presses every deviation, we only these
CHECKPOINT_EVERY, PROBE_EVERY = 100, 100
PROBE_TOKENS = 32 * 1024

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("loss {task.fields[loss]:.3f}"),
    TimeRemainingColumn(),
)


def main() -> None:
    """Train from the last checkpoint, or from nothing, to `--steps`."""
    arguments = parse_arguments()
    torch.manual_seed(SEED)
    torch.set_num_threads(arguments.threads)
    arguments.state.mkdir(parents=True, exist_ok=True)
    config = json.loads((FOLDER / "config.json").read_text())
    tokenizer, stream, probe = prepare(arguments.text, config["vocab_size"])
    network = Network(config)
    optimizer = Optimizer(network)
    checkpoint = arguments.state / "checkpoint.safetensors"
    first = restore(checkpoint, network, optimizer)
    log = arguments.state / "log.jsonl"
    began, losses = time.monotonic(), []
    with Progress(*COLUMNS) as progress:
        task = progress.add_task("training", total=arguments.steps, completed=first, loss=math.nan)
        for step in range(first, arguments.steps):
            losses.append(train_step(network, optimizer, stream, step, arguments.steps))
            progress.update(task, advance=1, loss=losses[-1])
            done = step + 1
            if done % PROBE_EVERY == 0 or done == arguments.steps:
                tokens, seconds = done * BLOCK * BLOCKS_PER_STEP, round(time.monotonic() - began, 1)
                train_loss = round(sum(losses) / len(losses), 4)
                record = {"step": done, "tokens": tokens, "seconds": seconds, "train_loss": train_loss}
                record |= measure(network, probe)
                losses.clear()
                with log.open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
                progress.console.print(json.dumps(record))
            if done % CHECKPOINT_EVERY == 0 or done == arguments.steps:
                save(checkpoint, network, optimizer, done)
                export(network, tokenizer, arguments.out)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the bundled demo model.")
    parser.add_argument("--state", type=Path, required=True, help="folder for checkpoints and the log")
    parser.add_argument("--text", type=Path, default=PACKAGE_TEXT, help="root of the *.rst.txt files")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder the model is written to")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def prepare(text: Path, vocab_size: int) -> tuple[Tokenizer, torch.Tensor, torch.Tensor]:
    """(tokenizer, training stream, held-out probe), all a pure function of the text and the seed."""
    training, held_out = split(read_documents(text))
    tokenizer = train_tokenizer(training, vocab_size)
    stream = torch.tensor(token_stream(training, tokenizer, SEED), dtype=torch.int32)
    probe = torch.tensor([t for d in held_out for t in tokenizer.encode(d.text).ids])
    spread = torch.linspace(0, len(probe) - 1025, PROBE_TOKENS // 1024).long()
    return tokenizer, stream, probe[spread[:, None] + torch.arange(1025)]


def train_step(network: Network, optimizer: Optimizer, stream: torch.Tensor, step: int, steps: int) -> float:
    """One update; its loss in nats a token."""
    inputs, targets = batch(stream, step)
    loss = network(inputs, targets)
    loss.backward()
    optimizer.step(step + 1, rate_factor(step, steps))
    for layer in network.layers:
        if isinstance(layer.mlp, MoE):
            layer.mlp.rebalance(BIAS_STEP, STARVED, OVERRUN)
    return loss.item()


def batch(stream: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets [sequences, length] of step `step`: each epoch visits every block once, at its own offset."""
    per_epoch = (len(stream) - BLOCK - 1) // BLOCK // BLOCKS_PER_STEP
    epoch, within = divmod(step, per_epoch)
    rng = torch.Generator().manual_seed(SEED + epoch)
    offset = torch.randint(BLOCK, (1,), generator=rng)
    order = torch.randperm(per_epoch * BLOCKS_PER_STEP, generator=rng)
    starts = order[within * BLOCKS_PER_STEP :][:BLOCKS_PER_STEP] * BLOCK + offset
    window = stream[starts[:, None] + torch.arange(BLOCK + 1)].long()
    length = {0: 2048, 4: 1024}.get(step % 8, 512)
    return window[:, :-1].reshape(-1, length), window[:, 1:].reshape(-1, length)


def rate_factor(step: int, steps: int) -> float:
    """Warm-up, plateau, linear fall to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (COOLDOWN_SHARE * steps))


@torch.no_grad()
def measure(network: Network, probe: torch.Tensor) -> dict[str, object]:
    """Held-out loss in nats a token and, per MoE layer, the least and most loaded expert over the mean."""
    network.eval()
    moes = [layer.mlp for layer in network.layers if isinstance(layer.mlp, MoE)]
    losses, loads = [], torch.zeros(len(moes), len(moes[0].bias))
    for part in probe.split(8):
        losses.append(network(part[:, :-1], part[:, 1:]).item())
        loads += torch.stack([moe.counts for moe in moes])
    network.train()
    loads /= loads.mean(1, keepdim=True)
    return {
        "held_out_loss": round(sum(losses) / len(losses), 4),
        "min_load": [round(value, 2) for value in loads.amin(1).tolist()],
        "max_load": [round(value, 2) for value in loads.amax(1).tolist()],
    }


def save(path: Path, network: Network, optimizer: Optimizer, step: int) -> None:
    """Write everything a later run needs; an interrupted write leaves the earlier checkpoint whole."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.state.items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"step": str(step)})
    partial.replace(path)


def restore(path: Path, network: Network, optimizer: Optimizer) -> int:
    """Load the checkpoint if there is one; the number of steps it has behind it."""
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        network.load_state_dict({name: file.get_tensor(f"network.{name}") for name in network.state_dict()})
        for name, tensor in optimizer.state.items():
            tensor.copy_(file.get_tensor(f"optimizer.{name}"))
        return int(file.metadata()["step"])


if __name__ == "__main__":
    main()

"""Train the demo model: python -m runtime.demo.training.train {text,answers} --state DIR

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

from runtime.demo.training.answers import known_answers
from runtime.demo.training.corpus import PACKAGE_TEXT, SEED, read_documents, split, token_stream, train_tokenizer
from runtime.demo.training.export import adopt, export
from runtime.demo.training.network import MoE, Network
from runtime.demo.training.optimizer import Optimizer
from runtime.demo.training.phases import Answers, Text

__all__ = ["STEPS"]

FOLDER = Path(__file__).parents[1]
STEPS = {"text": 2400, "answers": 500}
BIAS_STEP = 0.002
STARVED, OVERRUN = 0.3, 3.0  # loads over the layer's mean; DeepSeek presses every deviation, we only these
REPORT_EVERY = 100  # steps: a probe, a line of the log, a checkpoint and an export
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
    tokenizer, phase, probe = prepare(arguments, config["vocab_size"])
    network = Network(config, fp8=phase.fp8)
    optimizer = Optimizer(network)
    checkpoint = arguments.state / f"{arguments.phase}.safetensors"
    if arguments.phase == "answers":
        adopt(network, arguments.out)
    first = restore(checkpoint, network, optimizer)
    log = arguments.state / f"{arguments.phase}.jsonl"
    began, losses = time.monotonic() - seconds_logged(log, first), []
    with Progress(*COLUMNS) as progress:
        task = progress.add_task("training", total=phase.steps, completed=first, loss=math.nan)
        for step in range(first, phase.steps):
            losses.append(train_step(network, optimizer, phase, step))
            progress.update(task, advance=1, loss=losses[-1][0])
            done = step + 1
            if done % REPORT_EVERY == 0 or done == phase.steps:
                means = [round(sum(each) / len(each), 4) for each in zip(*losses, strict=True)]
                tokens, seconds = done * phase.tokens_per_step, round(time.monotonic() - began, 1)
                record = {"step": done, "tokens": tokens, "seconds": seconds}
                record |= dict(zip(phase.losses, means, strict=True)) | measure(network, probe)
                losses.clear()
                with log.open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
                progress.console.print(json.dumps(record))
                save(checkpoint, network, optimizer, done)
                export(network, tokenizer, arguments.out)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled demo model.")
    parser.add_argument("phase", choices=STEPS, help="text from nothing, then answers from the weights in --out")
    parser.add_argument("--state", type=Path, required=True, help="folder for checkpoints and the log")
    parser.add_argument("--text", type=Path, default=PACKAGE_TEXT, help="root of the *.rst.txt files")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder the model is written to")
    parser.add_argument("--steps", type=int, help=f"instead of {STEPS}")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def prepare(arguments: argparse.Namespace, vocab_size: int) -> tuple[Tokenizer, Text | Answers, torch.Tensor]:
    """Return (tokenizer, training phase, rows of held-out tokens on which the loss is measured).

    They depend only on the text, the seed and the arguments.
    """
    training, held_out = split(read_documents(arguments.text))
    tokenizer = train_tokenizer(training, vocab_size)
    steps = arguments.steps or STEPS[arguments.phase]
    if arguments.phase == "answers":
        stream = torch.tensor(token_stream(training, tokenizer, SEED, chat_share=0), dtype=torch.int32)
        phase = Answers(stream, steps, known_answers(training), tokenizer)
    else:
        phase = Text(torch.tensor(token_stream(training, tokenizer, SEED), dtype=torch.int32), steps)
    probe = torch.tensor([t for d in held_out for t in tokenizer.encode(d.text).ids])
    spread = torch.linspace(0, len(probe) - 1025, PROBE_TOKENS // 1024).long()
    return tokenizer, phase, probe[spread[:, None] + torch.arange(1025)]


def train_step(network: Network, optimizer: Optimizer, phase: Text | Answers, step: int) -> list[float]:
    """Make one update, to which the step's batches contribute equally. Return each batch's loss in nats per target."""
    batches, losses = phase.batches(step), []
    for inputs, targets in batches:
        loss = network(inputs, targets)
        (loss / len(batches)).backward()
        losses.append(loss.item())
    optimizer.step(step + 1, phase.rate_factor(step))
    for layer in network.layers:
        if isinstance(layer.mlp, MoE):
            layer.mlp.rebalance(BIAS_STEP, STARVED, OVERRUN)
    return losses


@torch.no_grad()
def measure(network: Network, probe: torch.Tensor) -> dict[str, object]:
    """Return the held-out loss in nats per token and, per MoE layer, the least and the largest load over the mean."""
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


def seconds_logged(log: Path, step: int) -> float:
    """Return how many seconds training took up to `step`, by the log of the call that left its checkpoint there."""
    return json.loads(log.read_text().splitlines()[-1])["seconds"] if step else 0.0


def save(path: Path, network: Network, optimizer: Optimizer, step: int) -> None:
    """Write everything that a later run needs. An interrupted write leaves the earlier checkpoint whole."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer.state.items()}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"step": str(step)})
    partial.replace(path)


def restore(path: Path, network: Network, optimizer: Optimizer) -> int:
    """Load the checkpoint if there is one. Return the number of steps behind it; 0 without one."""
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        network.load_state_dict({name: file.get_tensor(f"network.{name}") for name in network.state_dict()})
        for name, tensor in optimizer.state.items():
            tensor.copy_(file.get_tensor(f"optimizer.{name}"))
        return int(file.metadata()["step"])


if __name__ == "__main__":
    main()

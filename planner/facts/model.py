"""A mixture-of-experts model as the planner sees it: the weights of each layer, and a request's KV in each layer.

Each layer has an attention (`facts/attention/`) and an FFN, dense or of experts. Equal layers are equal values, so
passes compute each kind once. Families (`planner/families`) make models from a checkpoint's `config.json`.

The invariant: dense layers come first, and all MoE layers have equally many experts of one size. Expert maps have a row
for each MoE layer, so row r is the model's layer `num_dense_layers + r`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil

from planner.facts.attention.kind import Attention, Matrix, Part, Role
from planner.facts.attention.latent import LatentAttention
from planner.facts.quantisation import UNQUANTISED, Formats, Quantisation
from planner.facts.terms import KvPrecision, Precision

MAX_LAYERS = 1000  # published models have up to 94


@dataclass(frozen=True)
class Dense:
    """The FFN of a dense layer."""

    intermediate_size: int

    def matrices(self, hidden_size: int) -> Iterator[Matrix]:
        """Yield the matrices of the FFN: gate, up and down."""
        yield from _ffn("dense", hidden_size * self.intermediate_size, "ffn", "mlp")


@dataclass(frozen=True)
class Experts:
    """The FFN of an MoE layer."""

    num_routed: int  # logical experts
    num_per_token: int
    intermediate_size: int  # of one routed expert
    num_shared: int = 0
    shared_intermediate_size: int = 0  # of one shared expert
    num_groups: int = 1  # the gate picks groups first; a group is a run of consecutive experts
    num_groups_per_token: int = 1  # how many groups the gate picks; a token's experts are in these
    is_hashed: bool = False  # a table maps each token of the vocabulary to experts; the gate only weights them
    has_biases: bool = False  # whether experts and gate have biases
    gates_shared: bool = False  # whether a gate weights the shared experts' output for each token

    def matrices(self, hidden_size: int) -> Iterator[Matrix]:
        """Yield the matrices of the FFN, with only one routed expert, because the layout decides how many a GPU has."""
        biases = 2 * self.intermediate_size + hidden_size if self.has_biases else 0
        yield from _ffn("experts", hidden_size * self.intermediate_size, "expert", "mlp.experts.0")
        yield Matrix("experts", biases, "wide")
        for _ in range(self.num_shared):
            yield from _ffn("shared", hidden_size * self.shared_intermediate_size, "ffn", "mlp.shared_experts")
        gates = self.num_routed * (hidden_size + (1 if self.has_biases else 0))
        yield Matrix("gates", gates + (hidden_size if self.gates_shared else 0), "wide")


@dataclass(frozen=True)
class Layer:
    """One layer of the main model."""

    attention: Attention
    ffn: Dense | Experts
    kept_in: Formats | None = None  # the checkpoint's own formats, if its precision does not describe them

    def matrices(self, hidden_size: int) -> Iterator[Matrix]:
        """Yield the matrices of the layer, with those of only one routed expert."""
        for matrix in (*self.attention.matrices(hidden_size), *self.ffn.matrices(hidden_size)):
            kept_in = self.kept_in.of(matrix.role, matrix.module) if self.kept_in and matrix.module else None
            yield replace(matrix, kept_in=kept_in) if kept_in else matrix


@dataclass(frozen=True)
class Model:
    """The shapes of a mixture-of-experts model."""

    model_type: str  # as transformers calls the family in a checkpoint's config.json
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    source: str
    architecture: str | None = None  # the first of the config's `architectures`, by which engines know it
    quantisation: Quantisation = UNQUANTISED
    ties_embeddings: bool = False  # whether one matrix is both input embedding and output head
    num_streams: int = 1  # residual streams, which hyper-connections mix before and after each half of a layer
    num_mtp_layers: int = 0
    draft_layer: Layer | None = None  # the layer of an MTP module; None if it has none or its shape is unknown
    drafts: bool = False  # whether the last of `layers` belongs to an MTP module
    tower_weights: int = 0  # of encoders for images and sound
    brings_code: bool = False  # whether the checkpoint has code that other engines must run, such as a tokenizer

    def __hash__(self) -> int:
        """Return a cached hash, because searches look up the same model's weights again and again."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.source, self.hidden_size, self.vocab_size, self.layers, self.drafts))

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the main model."""
        return len(self.layers)

    @cached_property
    def num_dense_layers(self) -> int:
        """Return the number of dense layers, which come first."""
        return sum(isinstance(layer.ffn, Dense) for layer in self.layers)

    @property
    def num_moe_layers(self) -> int:
        """Return the number of layers that have a row in expert maps."""
        return self.num_layers - self.num_dense_layers

    @property
    def are_hashed(self) -> list[bool]:
        """Return for each MoE layer whether a table routes its tokens, `[num_moe_layers]`."""
        return [layer.ffn.is_hashed for layer in self.layers if not isinstance(layer.ffn, Dense)]

    @property
    def experts(self) -> Experts:
        """Return the experts of the last layer. All MoE layers have equally many experts of the same size."""
        ffn = self.layers[-1].ffn
        assert isinstance(ffn, Experts)
        return ffn

    @property
    def num_routed_experts(self) -> int:
        """Return the number of logical experts of one MoE layer."""
        return self.experts.num_routed

    @property
    def num_experts_per_token(self) -> int:
        """Return the number of routed experts per token in one MoE layer."""
        return self.experts.num_per_token

    @property
    def num_shared_experts(self) -> int:
        """Return the number of shared experts of one MoE layer."""
        return self.experts.num_shared

    @property
    def num_expert_groups(self) -> int:
        """Return the number of groups of consecutive experts. The gate first picks groups, then experts in these."""
        return self.experts.num_groups

    @property
    def num_groups_per_token(self) -> int:
        """Return the most groups that one token's experts can be in."""
        return self.experts.num_groups_per_token

    @cached_property
    def dense_intermediate_size(self) -> int:
        """Return the inner size of dense layers; 0 if there are none."""
        return max((layer.ffn.intermediate_size for layer in self.layers if isinstance(layer.ffn, Dense)), default=0)

    @cached_property
    def attentions(self) -> Mapping[Attention, int]:
        """Return kind of attention -> number of layers with it."""
        return Counter(layer.attention for layer in self.layers)

    @property
    def is_dense_latent(self) -> bool:
        """Return whether all layers have latent attention over all tokens."""
        return all(isinstance(each, LatentAttention) and not each.is_sparse for each in self.attentions)

    @property
    def only_kv(self) -> KvPrecision | None:
        """Return the single precision in which kernels can store KV; None if they can store any precision."""
        return next((each.only_kv for each in self.attentions if each.only_kv), None)

    @property
    def weights_in(self) -> Precision:
        """Return the precision of the published checkpoint."""
        return self.quantisation.precision

    @cached_property
    def kinds(self) -> Mapping[Layer, int]:
        """Return kind of layer -> number of such layers."""
        return Counter(self.layers)

    def matrices(self) -> Iterator[tuple[Matrix, int]]:
        """Yield each matrix of the model with the number of layers that have it.

        Of a layer's routed experts, only one counts.
        """
        for layer, count in self.kinds.items():
            for matrix in layer.matrices(self.hidden_size):
                yield matrix, count
        yield Matrix("norms", self.hidden_size, "wide"), 2 * self.num_layers + 1
        yield Matrix("embedding", self.vocab_size * self.hidden_size, "wide"), 1
        if not self.ties_embeddings:
            head = self.quantisation.head
            yield Matrix("embedding", self.vocab_size * self.hidden_size, "wide", kept_in=head), 1
        yield Matrix("towers", self.tower_weights, "wide"), 1
        if self.drafts:
            yield Matrix("dense", 2 * self.hidden_size * self.hidden_size, "wide"), 1  # eh_proj
        if self.num_streams > 1:
            yield from self._stream_mixers()

    def kv_bytes(self, num_tokens: int, bytes_per_value: int) -> int:
        """Return the bytes of KV of one request of `num_tokens`, over all layers."""
        return sum(count * each.kv(bytes_per_value).bytes_of(num_tokens) for each, count in self.attentions.items())

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the KV bytes per token, over all layers: 61 x (512 + 64) x 2 B = 70,272 B for V3 in BF16.

        The result is rounded up if layers have one entry for several tokens.
        """
        return _kv_bytes_per_token(self, bytes_per_value)

    def kv_bytes_per_request(self, num_tokens: int, bytes_per_value: int) -> int:
        """Return the bytes of windows and states of a request of `num_tokens`, over all layers."""
        return sum(count * each.kv(bytes_per_value).fixed_bytes(num_tokens) for each, count in self.attentions.items())

    def one_of(self, num_gpus: int) -> "Model":
        """Return the model with one GPU's part of the attention heads, if `num_gpus` share them."""
        return _one_of(self, num_gpus) if num_gpus > 1 else self

    def with_drafts(self) -> "Model":
        """Return the model with one MTP module as a last layer, as engines load it to draft tokens.

        The module has a layer like the main model's, and a projection of a state and an embedding to one state. The
        main model's embedding and head serve the module too. Source: github.com/deepseek-ai/DeepSeek-V3 0b39205a
        README_WEIGHTS.md.
        """
        return _with_drafts(self)

    def with_layers(self, change: Callable[[Layer], Layer]) -> "Model":
        """Return the model with `change` applied to each layer."""
        changed = {layer: change(layer) for layer in self.kinds}
        draft = None if self.draft_layer is None else change(self.draft_layer)
        return replace(self, layers=tuple(changed[layer] for layer in self.layers), draft_layer=draft)

    def _stream_mixers(self) -> Iterator[tuple[Matrix, int]]:
        """Yield the matrices of hyper-connections: before and after each half of a layer, and before the head.

        Source: transformers 5.23.0 models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HyperConnection and HyperHead;
        FP32: sglang 0.5.23 models/deepseek_v4.py.
        """
        streams = self.num_streams
        mixed = (2 + streams) * streams  # reads, writes, and streams to streams
        wide = streams * self.hidden_size
        yield Matrix("attention", mixed * wide + mixed + 3, "fp32"), 2 * self.num_layers
        yield Matrix("attention", streams * wide + streams + 1, "fp32"), 1


def _ffn(part: Part, num_weights: int, role: Role, module: str) -> Iterator[Matrix]:
    """Yield the three matrices of an FFN, with `num_weights` each."""
    for name in ("gate_proj", "up_proj", "down_proj"):
        yield Matrix(part, num_weights, role, f"{module}.{name}")


@lru_cache(maxsize=64)
def _kv_bytes_per_token(model: Model, bytes_per_value: int) -> int:
    """Return `Model.kv_bytes_per_token`, cached for searches."""
    return ceil(sum(count * each.kv(bytes_per_value).bytes_per_token for each, count in model.attentions.items()))


@lru_cache(maxsize=64)
def _with_drafts(model: Model) -> Model:
    """Return `Model.with_drafts`, cached so that the caches of the returned model are used."""
    assert model.draft_layer is not None
    return replace(model, layers=(*model.layers, model.draft_layer), drafts=True)


@lru_cache(maxsize=64)
def _one_of(model: Model, num_gpus: int) -> Model:
    """Return `Model.one_of`, cached, because layouts use few different numbers of GPUs."""
    return model.with_layers(lambda layer: replace(layer, attention=layer.attention.one_of(num_gpus)))

# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Heads of EAGLE-3: one decoder layer that guesses from a model's hidden states.

Li et al., 2025, arXiv:2503.01840. The feature f_i of token t_i is a projection of what three layers
of the target, a low, a middle and a high one, read at i. The head reads pairs (t_i, f_{i-1}), a
token and the feature before it, and says what follows t_i:

    h_i = layer(norm(embedding of t_i) beside norm(f_{i-1})), over the pairs up to i
    t_{i+1} = argmax of lm_head(norm(h_i)), by d2t from its own, smaller vocabulary to the target's

For a guess t_{i+1} there is no feature f_i yet, and h_i takes its place.

The pair (t_i, f_{i-1}) stands at position i of the cache, so that it depends on the tokens up to i
alone; and so does f_i. The first token has no feature before it: it is paired with its own, as if
it had been said twice. The paper begins with t_1; a page has no place that attention leaves out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenspeed_sdk.contracts.model import CacheGroup, TappedModel
from tokenspeed_sdk.modeling import (
    BuildContext,
    CacheView,
    ConfigReader,
    ForwardBatch,
    Layer,
    RopeConfig,
    WeightError,
    WeightMap,
    read_rope,
)
from tokenspeed_sdk.modeling.layers import (
    AddRMSNorm,
    Attention,
    CachePlace,
    ColumnLinear,
    Embedding,
    Head,
    Linear,
    RMSNorm,
    Rope,
    RowLinear,
    SiluAndMul,
    SplitHeads,
    rope_table,
)
from tokenspeed_sdk.modeling.rows import split_rows

KV, FEATURES = 0, 1
"""Cache groups."""

VARIANTS = ("norm_before_residual", "norm_before_fc", "norm_output")
"""Flags of heads that compute something else."""


@dataclass(frozen=True)
class Eagle3Config:
    """What of the two config.json the head depends on; sizes in elements.

    Attributes:
        vocab, draft_vocab: of the target, and of ``lm_head``.
        target_hidden: of the target's hidden states.
        taps: layers of the target whose input makes a feature.
    """

    vocab: int
    draft_vocab: int
    hidden: int
    target_hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    rope: RopeConfig
    taps: tuple[int, ...]


class Eagle3:
    """The backend."""

    name = "eagle3"

    def read_config(self, config: Mapping[str, Any], target: Mapping[str, Any]) -> Eagle3Config:
        read, of_target = ConfigReader(config, "the drafter's config.json"), ConfigReader(target)
        _refuse_others(config)
        _refuse_variants(config)
        read.choice("hidden_act", ("silu",), default="silu")
        vocab, target_hidden = of_target.size("vocab_size"), of_target.size("hidden_size")
        hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
        head_dim = read.size("head_dim", default=hidden // heads)
        for key, found, wanted in (
            ("num_hidden_layers", read.size("num_hidden_layers", default=1), 1),
            ("vocab_size", read.size("vocab_size"), vocab),
            ("target_hidden_size", read.size("target_hidden_size", target_hidden), target_hidden),
        ):
            if found != wanted:
                raise ValueError(
                    f"the drafter's config.json: {key} must be {wanted} for this model; got "
                    f"{found}; take a head that was made for it"
                )
        kv_heads = read.size("num_key_value_heads", default=heads)
        for key, number, parts in (
            ("hidden_size", hidden, 2),
            ("num_attention_heads", heads, kv_heads),
        ):
            if number % parts:
                raise ValueError(
                    f"the drafter's config.json: {key} must be a multiple of {parts}; got {number}"
                )
        return Eagle3Config(
            vocab=vocab,
            draft_vocab=read.size("draft_vocab_size", default=vocab),
            hidden=hidden,
            target_hidden=target_hidden,
            inter=read.size("intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            eps=read.number("rms_norm_eps", default=1e-6),
            bias=read.flag("attention_bias", default=False),
            rope=read_rope(config, rotary=head_dim),
            taps=_taps(config, of_target.size("num_hidden_layers")),
        )

    def taps(self, config: Eagle3Config) -> tuple[int, ...]:
        return config.taps

    def cache_groups(self, config: Eagle3Config) -> tuple[CacheGroup, ...]:
        """Keys and values of the layer; a feature lies as two halves, a key and a value."""
        return (
            CacheGroup("full", (0,), config.kv_heads, config.head_dim),
            CacheGroup("full", (0,), 1, config.hidden // 2),
        )

    def build(
        self,
        config: Eagle3Config,
        context: BuildContext,
        target: TappedModel,
        tensors: Collection[str],
    ) -> Eagle3Head:
        return Eagle3Head(config, context, target, tensors)


class Eagle3Head:
    """Named as in the checkpoint; a DraftModel."""

    def __init__(
        self,
        config: Eagle3Config,
        context: BuildContext,
        target: TappedModel,
        tensors: Collection[str],
    ) -> None:
        c, layer = config, "midlayer"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shape = {"heads": c.heads, "kv_heads": c.kv_heads, "head_dim": c.head_dim}
        qkv = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        gate_up = {"gate_proj": c.inter, "up_proj": c.inter}
        norm, attn, mlp = {"hidden": c.hidden, "eps": c.eps}, f"{layer}.self_attn", f"{layer}.mlp"

        self._config = config
        self._embed, self._table = target.embed, None
        if "embed_tokens.weight" in tensors:
            self._table = Embedding(context, "embed_tokens", vocab=c.vocab, hidden=c.hidden)
            self._embed = self._table.run
        elif c.hidden != c.target_hidden:
            raise WeightError(
                f"the drafter's checkpoint lacks embed_tokens.weight, and the target's embedding "
                f"has {c.target_hidden} elements where the head has {c.hidden}"
            )
        self._project = Linear(context, "fc", k=len(c.taps) * c.target_hidden, n=c.hidden)
        self._token_norm = RMSNorm(context, f"{layer}.input_layernorm", **norm)
        self._feature_norm = RMSNorm(context, f"{layer}.hidden_norm", **norm)
        self._qkv = ColumnLinear(context, f"{attn}.qkv_proj", k=2 * c.hidden, n=qkv, bias=c.bias)
        self._split = SplitHeads(f"{attn}.split_heads", **shape)
        table = rope_table(context, c.rope)
        self._rope = Rope(context, f"{attn}.rope", rope=c.rope, table=table, head_dim=c.head_dim)
        self._attention = Attention(context, f"{attn}.attend", **shape, cache=CachePlace(KV, 0))
        self._output = RowLinear(context, f"{attn}.o_proj", k=q, n=c.hidden, bias=c.bias)
        self._mlp_norm = AddRMSNorm(context, f"{layer}.post_attention_layernorm", **norm)
        self._widen = ColumnLinear(context, f"{mlp}.gate_up_proj", k=c.hidden, n=gate_up)
        self._activate = SiluAndMul(context, f"{mlp}.act", inter=c.inter)
        self._narrow = RowLinear(context, f"{mlp}.down_proj", k=c.inter, n=c.hidden)
        self._norm = AddRMSNorm(context, "norm", **norm)
        self._head = Head(context, "lm_head", vocab=c.draft_vocab, hidden=c.hidden)
        self._features = Features(context, c.hidden)
        self._ids = torch.zeros(c.draft_vocab, dtype=torch.int64, device=context.torch_device)
        self._has_offsets = "d2t" in tensors or c.draft_vocab != c.vocab

    def weight_map(self) -> WeightMap:
        weights = WeightMap(("t2d",))  # what d2t says, the other way round
        for layer in self._layers():
            layer.map_weights(weights)
        if self._has_offsets:
            weights.add("d2t", self._ids)
        return weights

    def prepare(self) -> None:
        """WeightError: d2t leads out of the target's vocabulary."""
        self._ids += torch.arange(len(self._ids), device=self._ids.device)
        outside = (self._ids < 0) | (self._ids >= self._config.vocab)
        if bool(outside.any()):
            first = int(outside.nonzero()[0])
            raise WeightError(
                f"d2t of the drafter's checkpoint makes token {int(self._ids[first])} of {first}, "
                f"and the target has {self._config.vocab}; take a head that was made for it"
            )
        for layer in self._layers():
            layer.pack_weights()

    def observe(self, batch: ForwardBatch, taps: tuple[torch.Tensor, ...]) -> None:
        features = self._project.run(torch.cat(taps, -1))
        self._features.keep(features, batch)
        _, k, v = self._heads(batch, self._before(features, batch))
        self._attention.write(k, v, split_rows(batch))

    def draft(self, batch: ForwardBatch, counts: torch.Tensor, most: Sequence[int]) -> torch.Tensor:
        guesses = batch.token_ids.new_zeros(len(most), most[0])
        last = batch.positions + counts - 1
        features = self._features.before(batch.caches[FEATURES], batch.row_slot, batch.positions)
        for place in range(most[0]):
            rows = sum(count > place for count in most)
            batch, features = _first(batch, rows), features[:rows]
            logits, features = self.step(batch, features)
            tokens = guesses[:rows, place] = self._ids[logits.argmax(-1)]
            batch = _follow(batch, tokens, last[:rows])
        return guesses

    def step(
        self, batch: ForwardBatch, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer, over all pairs so far and one more of each row, which it adds to the cache.

        Args:
            batch: decode rows, one token each.
            features: [rows, hidden], of the position before; or what stands for them. Changed.

        Returns:
            Logits [rows, draft vocabulary] float32, and what stands for the features of the
            tokens, [rows, hidden].
        """
        q, k, v = self._heads(batch, features)
        attended = self._attention.run(q, k, v, split_rows(batch))
        hidden, stream = self._mlp_norm.run(self._output.run(attended), features)
        hidden = self._narrow.run(self._activate.run(self._widen.run(hidden)))
        normed, stream = self._norm.run(hidden, stream)
        return self._head.run(normed), stream

    def _heads(
        self, batch: ForwardBatch, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of pairs, rotated."""
        token = self._token_norm.run(self._embed(batch.token_ids))
        pair = torch.cat((token, self._feature_norm.run(before)), -1)
        q, k, v = self._split.run(self._qkv.run(pair))
        q, k = self._rope.run(q, k, batch.positions)
        return q, k, v

    def _before(self, features: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The feature before each token: of the step, or of a page in front of the row's first."""
        first = batch.query_start[:-1].long()
        before = features.roll(1, 0)
        positions = batch.positions.index_select(0, first)
        before[first] = self._features.before(batch.caches[FEATURES], batch.row_slot, positions)
        return before

    def _layers(self) -> list[Layer]:
        return [value for value in vars(self).values() if isinstance(value, Layer)]


class Features:
    """[hidden] of each token, in the pages."""

    def __init__(self, context: BuildContext, hidden: int) -> None:
        shape = {"kv_heads": 1, "head_dim": hidden // 2, "page_size": context.page_size}
        self._half = hidden // 2
        self._page_size = context.page_size
        self._write = context.bind("kv_write@1", "features", **shape).call

    def keep(self, features: torch.Tensor, batch: ForwardBatch) -> None:
        """[tokens, hidden], each at its position."""
        cache = batch.caches[FEATURES]
        low, high = features.unsqueeze(1).split(self._half, -1)
        place = (cache.page_table, batch.token_slot, batch.positions)
        self._write(low, high, cache.keys[0], cache.values[0], *place)

    def before(self, cache: CacheView, slot: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """[n, hidden], each of the token before some position of a slot, [n] int32 both; the first
        token's before itself."""
        position = (position - 1).clamp_(min=0)
        page = cache.page_table[slot.long(), (position // self._page_size).long()].long()
        offset = (position % self._page_size).long()
        return torch.cat((cache.keys[0][page, 0, offset], cache.values[0][page, 0, offset]), -1)


def _follow(batch: ForwardBatch, tokens: torch.Tensor, last: torch.Tensor) -> ForwardBatch:
    """The rows with what was guessed of each, one position further.

    A row that has all its guesses stays at its ``last`` position, where it may write: in a captured
    step it is computed on, for one that had more.
    """
    lengths, positions = batch.host_kv_len, torch.minimum(batch.positions + 1, last)
    return replace(
        batch,
        token_ids=tokens,
        positions=positions,
        kv_len=positions + 1,
        host_kv_len=None if lengths is None else lengths + 1,
    )


def _first(batch: ForwardBatch, rows: int) -> ForwardBatch:
    """The first rows of those that have one token each."""
    starts, lengths = batch.host_query_start, batch.host_kv_len
    return replace(
        batch,
        token_ids=batch.token_ids[:rows],
        positions=batch.positions[:rows],
        token_slot=batch.token_slot[:rows],
        row_slot=batch.row_slot[:rows],
        query_start=batch.query_start[: rows + 1],
        kv_len=batch.kv_len[:rows],
        num_decode_rows=rows,
        host_query_start=None if starts is None else starts[: rows + 1],
        host_kv_len=None if lengths is None else lengths[:rows],
    )


def _taps(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers whose input a head reads: those of its config, else a low, a middle, a high one.

    Configs count in two ways: from 0 what a layer reads, or from 1, as the first of them then
    says, what it has written, which is what the next one reads.
    """
    key, nested = "eagle_aux_hidden_state_layer_ids", config.get("eagle_config") or {}
    found = config.get(key, nested.get(key))
    taps = [2, layers // 2, layers - 3] if found is None else found
    if found and found[0] == 1:
        taps = [layer + 1 for layer in found]
    if not taps or not all(layer in range(layers + 1) for layer in taps):
        raise ValueError(
            f"the drafter's config.json: {key} must list layers of the model, which has {layers}; "
            f"got {'none' if found is None else found}"
        )
    return tuple(taps)


def _refuse_others(config: Mapping[str, Any]) -> None:
    """What is no head at all. Heads call themselves LlamaForCausalLMEagle3 and the like; one that
    does not is known by its one layer."""
    names, layers = config.get("architectures") or [], config.get("num_hidden_layers")
    if layers not in (None, 1) and names and not any("eagle3" in f"{n}".lower() for n in names):
        raise ValueError(
            f"it is no head of EAGLE-3, which has one layer: its config.json says {names[0]}, "
            f"with num_hidden_layers {layers}; take a head that was trained for the model"
        )


def _refuse_variants(config: Mapping[str, Any]) -> None:
    nested = config.get("eagle_config") or {}
    for flag in VARIANTS:
        if config.get(flag) or nested.get(flag):
            raise ValueError(
                f"the drafter's config.json: {flag} is not supported; take a head without it"
            )

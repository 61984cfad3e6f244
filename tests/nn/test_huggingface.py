"""Model folders: what comes back, what a damaged one gets, and that nothing is written half."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parlab.nn import huggingface, llama
from parlab.nn.llama import Llama, LlamaConfig
from tests.nn.transformers_reference import LLAMA3_ROPE, SIZES

LAYER_0_UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A good model in one file, to be damaged."""
    Llama.random(LlamaConfig(**SIZES)).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def folder_in_parts(tmp_path):
    """A good model in several files, to be damaged."""
    Llama.random(LlamaConfig(**SIZES)).save(tmp_path / "parts", max_shard_bytes=2000)
    return tmp_path / "parts"


def edit_config(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "removed"}))


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def truncate(path, bytes_lost):
    path.write_bytes(path.read_bytes()[:-bytes_lost])


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: truncate(f / "model.safetensors", 1), "model.safetensors is damaged or truncated"),
        (lambda f: truncate(f / "model.safetensors", 3000), "model.safetensors is damaged or truncated"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is damaged or truncated"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "model.safetensors is damaged or truncated"),
        (lambda f: truncate(f / "config.json", 20), "config.json is damaged"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json holds a list: a JSON object is needed"),
        (lambda f: edit_weights(f, lambda w: w.pop(LAYER_0_UP)), f"1 weights are missing .*{LAYER_0_UP}"),
        (lambda f: edit_weights(f, lambda w: w.update(q_bias=np.ones(8, "f"))), "1 weights are surplus .*q_bias"),
        (
            lambda f: edit_weights(f, lambda w: w.update({LAYER_0_UP: np.ones((8, 12), "f")})),
            rf"{LAYER_0_UP} has shape \(12, 8\): the configuration asks for \(8, 12\)",
        ),
        (
            lambda f: edit_weights(f, lambda w: w.update({LAYER_0_UP: np.ones((12, 8, 1), "f")})),
            rf"{LAYER_0_UP} has shape \(12, 8, 1\)",
        ),
        (
            lambda f: edit_weights(f, lambda w: w.update({LAYER_0_UP: np.ones((12, 8), np.int32)})),
            f"{LAYER_0_UP} has dtype int32: one floating dtype for all",
        ),
        (lambda f: edit_config(f, model_type="gpt2"), "model_type='gpt2': only 'llama' is known"),
        (lambda f: edit_config(f, hidden_act="gelu"), "hidden_act='gelu': only 'silu' is known"),
        (lambda f: edit_config(f, attention_bias=True), "attention_bias=True: only False is known"),
        (lambda f: edit_config(f, hidden_size=16), r"shape \(11, 8\): the configuration asks for \(11, 16\)"),
        (lambda f: edit_config(f, num_hidden_layers=3), "9 weights are missing .*model.layers.2"),
        (lambda f: edit_config(f, num_hidden_layers=1), "9 weights are surplus .*model.layers.1"),
        (lambda f: edit_config(f, vocab_size="removed", hidden_size=None), "lacks vocab_size, hidden_size"),
        (lambda f: edit_config(f, rope_scaling={"type": "yarn", "factor": 2}), "type='yarn': use one of"),
        (lambda f: edit_config(f, partial_rotary_factor=0.5), "partial_rotary_factor=0.5: only 1 is known"),
        (
            lambda f: edit_config(f, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
            "partial_rotary_factor=0.5: only 1 is known",
        ),
        (lambda f: edit_config(f, rope_scaling="llama3"), "rope_scaling='llama3': an object with a type is needed"),
        (lambda f: edit_config(f, rope_parameters=["llama3"]), "rope_parameters=.*: an object with a type is needed"),
        (
            lambda f: edit_config(f, rope_parameters=LLAMA3_ROPE | {"factor": None}),
            "rope_scaling of type 'llama3': factor=None",
        ),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_folder_gets_a_clear_error(damage, text, folder):
    damage(folder)
    with pytest.raises(ValueError, match=text):
        llama.load(folder)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: shutil.rmtree(f), "config.json"),
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor model.safetensors.index.json"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "pytorch_model.bin is a pickle, which is never opened",
        ),
    ],
)
def test_a_missing_file_is_named(damage, text, folder):
    damage(folder)
    with pytest.raises(FileNotFoundError, match=text):
        llama.load(folder)


def change_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (
            lambda f: next(f.glob("model-00002-*")).unlink(),
            FileNotFoundError, "model-00002-of-",
        ),
        (lambda f: truncate(next(f.glob("model-00002-*")), 5), ValueError, "model-00002-.* is damaged or truncated"),
        (lambda f: truncate(f / "model.safetensors.index.json", 9), ValueError, "index.json is damaged"),
        (lambda f: change_index(f, lambda i: i.pop("weight_map")), ValueError, "no weight_map from names to files"),
        (
            lambda f: change_index(f, lambda i: i["weight_map"].update(more="model-00001-of-00005.safetensors")),
            (ValueError, FileNotFoundError), "model-00001-of-00005.safetensors",
        ),
        (
            lambda f: change_index(f, lambda i: i["weight_map"].update({"model.norm.weight": "../other.safetensors"})),
            ValueError, "names the file '../other.safetensors': it must lie in the folder itself",
        ),
        (
            lambda f: change_index(f, lambda i: i["weight_map"].pop(LAYER_0_UP)),
            ValueError, f"1 weights are missing .*{LAYER_0_UP}",
        ),
    ],
)  # fmt: skip
def test_a_damaged_folder_in_parts_gets_a_clear_error(damage, error, text, folder_in_parts):
    damage(folder_in_parts)
    with pytest.raises(error, match=text):
        llama.load(folder_in_parts)


def test_parts_of_at_most_2000_bytes_hold_every_weight_once(folder_in_parts):
    index = json.loads((folder_in_parts / "model.safetensors.index.json").read_text())
    parts = sorted(folder_in_parts.glob("model-*.safetensors"))
    assert len(parts) > 1
    contents = [load_file(part) for part in parts]
    assert all(sum(x.nbytes for x in content.values()) <= 2000 for content in contents)
    assert {name: part.name for part, content in zip(parts, contents, strict=True) for name in content} == (
        index["weight_map"]
    )
    assert index["metadata"]["total_size"] == 4 * LlamaConfig(**SIZES).num_parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("max_shard_bytes", [None, 1, 2000])
def test_saved_and_loaded_is_bitwise_the_same(dtype, max_shard_bytes, tmp_path):
    model = Llama.random(LlamaConfig(**SIZES | {"rope_scaling": LLAMA3_ROPE}), dtype=dtype)
    model.save(tmp_path, max_shard_bytes=max_shard_bytes)
    loaded = llama.load(tmp_path)
    assert list(loaded.weights) == list(model.weights)
    for name, weight in model.weights.items():
        assert loaded.weights[name].dtype == weight.dtype
        assert (loaded.weights[name] == weight).all()
        assert loaded.weights[name].flags.c_contiguous


def test_saving_over_another_layout_leaves_no_file_of_the_old_model(tmp_path):
    """transformers prefers model.safetensors to an index: a stale one would be opened instead of the new model."""
    first, second = (Llama.random(LlamaConfig(**SIZES), seed=seed) for seed in (1, 2))
    first.save(tmp_path)
    second.save(tmp_path, max_shard_bytes=2000)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert (llama.load(tmp_path).weights[LAYER_0_UP] == second.weights[LAYER_0_UP]).all()
    first.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (llama.load(tmp_path).weights[LAYER_0_UP] == first.weights[LAYER_0_UP]).all()


@pytest.mark.parametrize("max_shard_bytes", [None, 2000])
def test_a_write_that_fails_leaves_the_old_model_whole(max_shard_bytes, tmp_path, monkeypatch):
    first, second = (Llama.random(LlamaConfig(**SIZES), seed=seed) for seed in (1, 2))
    first.save(tmp_path, max_shard_bytes=max_shard_bytes)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "config.json" in before

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface.json, "dumps", full_disk)  # the weights are already written by then
    with pytest.raises(OSError, match="No space left"):
        second.save(tmp_path, max_shard_bytes=max_shard_bytes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_config_json_says_besides_is_kept(folder, tmp_path):
    edit_config(folder, eos_token_id=7, bos_token_id=None, torch_dtype="bfloat16")
    llama.load(folder).save(tmp_path / "again")
    values = json.loads((tmp_path / "again" / "config.json").read_text())
    assert values["eos_token_id"] == 7
    assert values["torch_dtype"] == "float32"  # what the weights now are


def test_old_checkpoints_rotary_buffers_and_copies_of_a_tied_head_are_passed_over(tmp_path):
    model = Llama.random(LlamaConfig(**SIZES | {"tie_word_embeddings": True}))
    model.save(tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, "f"), "lm_head.weight": np.ones((11, 8), "f")}
    edit_weights(tmp_path, lambda weights: weights.update(extra))
    assert llama.load(tmp_path).weights.keys() == model.weights.keys()


@pytest.mark.parametrize(("most", "parts"), [(16, [2, 1]), (15, [1, 1, 1]), (24, [3]), (1, [1, 1, 1])])
def test_a_part_of_three_weights_of_8_bytes_is_filled_to_the_last_byte(most, parts, tmp_path):
    huggingface.write_folder(tmp_path, {}, {name: np.ones(2, np.float32) for name in "abc"}, most)
    assert [len(load_file(path)) for path in sorted(tmp_path.glob("*.safetensors"))] == parts

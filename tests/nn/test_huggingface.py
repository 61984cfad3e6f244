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
def folder_in_parts(folder):
    """The same in 5 files with an index, as transformers writes a large model, to be damaged."""
    weights, parts, names = load_file(folder / "model.safetensors"), 5, {}
    for number in range(parts):
        file = f"model-{number + 1:05d}-of-{parts:05d}.safetensors"
        part = {name: x for place, (name, x) in enumerate(weights.items()) if place % parts == number}
        save_file(part, folder / file)
        names |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "model.safetensors").unlink()
    return folder


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
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is damaged or truncated"),
        (lambda f: truncate(f / "config.json", 20), "config.json is damaged"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json holds a list: a JSON object is needed"),
        (lambda f: edit_weights(f, lambda w: w.pop(LAYER_0_UP)), f".+: 1 weights are missing .*{LAYER_0_UP}"),
        (lambda f: edit_weights(f, lambda w: w.update(q_bias=np.ones(8, "f"))), "1 weights are surplus .*q_bias"),
        (
            lambda f: edit_weights(f, lambda w: w.update({LAYER_0_UP: np.ones((8, 12), "f")})),
            rf"{LAYER_0_UP} has shape \(12, 8\): the configuration asks for \(8, 12\)",
        ),
        (
            lambda f: edit_weights(f, lambda w: w.update({LAYER_0_UP: np.ones((12, 8), np.int32)})),
            f"{LAYER_0_UP} has dtype int32: one floating dtype for all",
        ),
        (lambda f: edit_config(f, model_type="gpt2"), "model_type='gpt2': only 'llama' is known"),
        (lambda f: edit_config(f, hidden_act="gelu"), "hidden_act='gelu': only 'silu' is known"),
        (lambda f: edit_config(f, attention_bias=True), "attention_bias=True: only False is known"),
        (lambda f: edit_config(f, vocab_size="removed", hidden_size=None), "lacks vocab_size, hidden_size"),
        (lambda f: edit_config(f, partial_rotary_factor=0.5), "partial_rotary_factor=0.5: only 1 is known"),
        (
            lambda f: edit_config(f, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
            "partial_rotary_factor=0.5: only 1 is known",
        ),
        (lambda f: edit_config(f, rope_scaling="llama3"), "rope_scaling='llama3': an object with a type is needed"),
        (lambda f: edit_config(f, rope_parameters=["llama3"]), "rope_parameters=.*: an object with a type is needed"),
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
            lambda f: change_index(f, lambda i: i["weight_map"].update({"model.norm.weight": 3})),
            ValueError, "no weight_map from names to files",
        ),
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


def test_a_model_in_5_parts_is_the_one_that_was_saved(folder_in_parts):
    saved, loaded = Llama.random(LlamaConfig(**SIZES)), llama.load(folder_in_parts)
    assert all((loaded.weights[name] == x).all() for name, x in saved.weights.items())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_and_loaded_is_bitwise_the_same(dtype, tmp_path):
    model = Llama.random(LlamaConfig(**SIZES | {"rope_scaling": LLAMA3_ROPE}), dtype=dtype)
    model.save(tmp_path)
    loaded = llama.load(tmp_path)
    assert list(loaded.weights) == list(model.weights)
    for name, weight in model.weights.items():
        assert loaded.weights[name].dtype == weight.dtype
        assert (loaded.weights[name] == weight).all()
        assert loaded.weights[name].flags.c_contiguous


def test_saving_over_a_model_in_parts_leaves_no_file_of_the_old_one(folder_in_parts):
    (folder_in_parts / "tokenizer.json").write_text("{}")
    second = Llama.random(LlamaConfig(**SIZES), seed=2)
    second.save(folder_in_parts)
    left = sorted(path.name for path in folder_in_parts.iterdir())
    assert left == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (llama.load(folder_in_parts).weights[LAYER_0_UP] == second.weights[LAYER_0_UP]).all()


def test_a_write_that_fails_leaves_the_old_model_whole(folder_in_parts, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder_in_parts.iterdir()}
    write = huggingface.Path.write_bytes

    def full_disk(path, content):
        if "config.json" in path.name:  # the weights are already written by then
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(huggingface.Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left"):
        Llama.random(LlamaConfig(**SIZES), seed=2).save(folder_in_parts)
    assert {path.name: path.read_bytes() for path in folder_in_parts.iterdir()} == before


def test_what_config_json_says_besides_is_kept(folder, tmp_path):
    edit_config(folder, eos_token_id=7, bos_token_id=None, torch_dtype="bfloat16", dtype="bfloat16")
    llama.load(folder).save(tmp_path / "again")
    values = json.loads((tmp_path / "again" / "config.json").read_text())
    assert values["eos_token_id"] == 7
    assert values["torch_dtype"] == "float32"  # what the weights now are
    assert "dtype" not in values  # its name in transformers 5


def test_old_checkpoints_rotary_buffers_and_copies_of_a_tied_head_are_passed_over(tmp_path):
    model = Llama.random(LlamaConfig(**SIZES | {"tie_word_embeddings": True}))
    model.save(tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, "f"), "lm_head.weight": np.ones((11, 8), "f")}
    edit_weights(tmp_path, lambda weights: weights.update(extra))
    assert llama.load(tmp_path).weights.keys() == model.weights.keys()

"""Save under one mesh, open under another: the same state, the same next loss."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parlab import run
from parlab.nn import AdamW
from parlab.nn.llama import load as load_llama
from parlab.train import Mesh, Trainer, export, load, read_index, save
from parlab.zero import LossScale
from tests.train.models import LIBRARIES, batches, model

MESHES = [
    {"mesh": dict(dp=2), "zero": 1},
    {"mesh": dict(tp=2), "zero": 0, "sequence_parallel": True},
    {"mesh": dict(pp=2, tp=2), "zero": 1},
    {"mesh": dict(dp=2, cp=2), "zero": 3},
    {"mesh": dict(dp=3, tp=4), "zero": 2},
    {"mesh": dict(), "zero": 0},
    {"mesh": dict(dp=2, pp=2, cp=2, tp=2), "zero": 3},
]
TEXT = batches(12, 8, steps=3)


def ranks(place):
    return int(np.prod(list(place["mesh"].values()) or [1]))


def trained(comm, place, start, folder, steps=1, **options):
    """Train, save, go on: the losses after the save."""
    mesh = Mesh(comm, **place["mesh"])
    kept = {name: value for name, value in place.items() if name != "mesh"}
    trainer = Trainer(mesh, start, AdamW(lr=1e-2, betas=(0.8, 0.95)), **kept, **options)
    for tokens, targets in TEXT[:steps]:
        trainer.step(tokens, targets)
    save(trainer, folder, notes={"text": "drawn"})
    return [trainer.step(*batch) for batch in TEXT[steps:]], trainer.full_weights()


def resumed(comm, place, folder, steps=1, xp=np, **options):
    kept = {name: value for name, value in place.items() if name != "mesh"}
    trainer = load(folder, Mesh(comm, **place["mesh"]), xp=xp, **kept, **options)
    assert trainer.samples == steps * TEXT[0][0].shape[0]
    return [trainer.step(*(xp.asarray(x) for x in batch)) for batch in TEXT[steps:]], trainer.full_weights()


def test_numbers_of_numpy_are_saved_and_notes_that_json_has_not_are_refused_before_a_file_is_written(tmp_path):
    rate, norm = np.float32(1e-3), np.float32(0.7)

    def program(comm, folder, notes):
        save(Trainer(Mesh(comm, dp=2), model(), AdamW(lr=rate), max_norm=norm), folder, notes=notes)
        again = load(folder, Mesh(comm, tp=2), xp=np)
        return again.replica.optimizer.lr, again.replica.guard.max_norm

    assert run(program, 2, tmp_path / "a", {"step": np.int64(7)}).results == [(rate, norm)] * 2
    assert read_index(tmp_path / "a")["notes"] == {"step": 7}
    for notes in ({"map": np.ones(2)}, {"set": {1}}):
        with pytest.raises(ValueError, match=r"notes=\{"):
            run(program, 2, tmp_path / "b", notes)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_8_pairs_of_meshes_go_on_with_the_same_losses_to_1e_12(tmp_path, tied):
    start = model(num_hidden_layers=2, tie_word_embeddings=tied)
    pairs = random.Random(int(tied)).sample([(a, b) for a in MESHES for b in MESHES], 4)
    for number, (before, after) in enumerate(pairs):
        folder = tmp_path / str(number)
        goes_on = run(trained, ranks(before), before, start, folder, max_norm=1.0).results[0]
        found = run(resumed, ranks(after), after, folder).results
        for results, _ in found:
            assert [r.loss for r in results] == pytest.approx([r.loss for r in goes_on[0]], rel=1e-12, abs=0)
        if before == after:
            assert found[0][0] == goes_on[0]


@pytest.mark.parametrize("place", MESHES, ids=lambda place: str(place["mesh"]))
def test_under_the_same_mesh_all_bits_are_the_same(tmp_path, place):
    goes_on, weights = run(trained, ranks(place), place, model(num_hidden_layers=2), tmp_path).results[0]
    found, again = run(resumed, ranks(place), place, tmp_path).results[0]
    assert found == goes_on
    assert all(np.array_equal(weights[name], again[name]) for name in weights)


def test_float16_goes_on_with_its_loss_scale_and_the_masters_bits(tmp_path):
    place, options = {"mesh": dict(dp=2), "zero": 2}, dict(dtype="float16", loss_scale=LossScale(2.0**18, interval=2))
    goes_on, weights = run(trained, 2, place, model(num_hidden_layers=2, dtype="float32"), tmp_path, **options).results[
        0
    ]
    assert read_index(tmp_path)["progress"]["skipped"] > 0  # the scale has moved
    found, again = run(resumed, 2, place, tmp_path).results[0]
    assert str(found) == str(goes_on)  # the norm of a skipped step is no number
    assert [result.skipped for result in found] == [True, False]
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert weights["model.norm.weight"].dtype == np.float16


@pytest.mark.parametrize("zero", [0, 1])
def test_a_float32_run_goes_on_in_float16_with_a_loss_scale_that_begins(tmp_path, zero):
    start, place = model(dtype="float32", num_hidden_layers=1), {"mesh": dict(dp=2), "zero": zero}
    (before, _), *_ = run(trained, 2, place, start, tmp_path, steps=2).results

    def program(comm):
        trainer = load(tmp_path, Mesh(comm, dp=2), xp=np, zero=zero, dtype="float16")
        return trainer.progress, trainer.step(*TEXT[2]).loss, trainer.full_weights()["model.norm.weight"].dtype

    for progress, loss, dtype in run(program, 2).results:
        assert progress == {"samples": 24, "steps": 2, "skipped": 0, "loss_scale": 2.0**16, "good_steps": 0}
        assert loss == pytest.approx(before[0].loss, rel=1e-3)
        assert dtype == np.float16


def test_numpy_saves_what_array_api_strict_opens(tmp_path):
    place = {"mesh": dict(tp=2), "zero": 1}
    goes_on, _ = run(trained, 2, place, model(num_hidden_layers=2), tmp_path).results[0]
    found, _ = run(resumed, 2, place, tmp_path, xp=LIBRARIES["strict"]).results[0]
    assert [r.loss for r in found] == pytest.approx([r.loss for r in goes_on], rel=1e-12, abs=0)


def test_export_is_a_folder_that_hugging_faces_reader_opens(tmp_path):
    def program(comm):
        trainer = Trainer(Mesh(comm, pp=2, tp=2), model(num_hidden_layers=2), AdamW())
        trainer.step(*TEXT[0])
        export(trainer, tmp_path)
        return trainer.full_weights()

    weights = run(program, 4).results[3]
    read = load_llama(tmp_path, xp=np).weights
    assert all(np.array_equal(read[name], weights[name]) for name in weights)


@pytest.fixture
def saved(tmp_path):
    run(trained, 4, {"mesh": dict(dp=2, tp=2), "zero": 1}, model(num_hidden_layers=2), tmp_path)
    return tmp_path


def opened(folder):
    return run(resumed, 2, {"mesh": dict(dp=2), "zero": 1}, folder)


def rewritten(folder, change):
    index = read_index(folder)
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def test_a_save_leaves_its_index_and_one_file_a_rank(saved):
    assert sorted(path.name.partition("-")[0] for path in saved.iterdir()) == ["index.json"] + ["pieces"] * 4
    run(trained, 2, {"mesh": dict(dp=2), "zero": 1}, model(num_hidden_layers=2), saved)
    assert len(list(saved.iterdir())) == 3


def test_a_hole_is_refused_by_the_name_of_its_weight(saved):
    rewritten(saved, lambda index: index["pieces"].pop(0))
    with pytest.raises(ValueError, match=r"the checkpoint lacks 0:\d+ .* of model\.embed_tokens\.weight"):
        opened(saved)


def test_a_piece_that_is_there_twice_is_refused_by_the_name_of_its_weight(saved):
    rewritten(saved, lambda index: index["pieces"].append(index["pieces"][0]))
    with pytest.raises(ValueError, match=r"the checkpoint has 0:\d+ twice .* of model\.embed_tokens\.weight"):
        opened(saved)


def test_a_truncated_file_is_refused_by_its_name(saved):
    path = sorted(saved.glob("pieces-*"))[1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"{path.name} is damaged or truncated"):
        opened(saved)


def test_a_missing_file_is_refused_by_its_name(saved):
    path = sorted(saved.glob("pieces-*"))[1]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{path.name} is missing"):
        opened(saved)


def test_a_damaged_index_and_a_folder_without_one_are_refused(saved, tmp_path):
    (saved / "index.json").write_text('{"format": "parlab')
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        opened(saved)
    (saved / "index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"index\.json is no 'parlab checkpoint 1'"):
        opened(saved)
    (saved / "index.json").write_text('{"format": "parlab checkpoint 1", "config": {}, "notes": {}}')
    with pytest.raises(ValueError, match=r"index\.json is damaged: it lacks optimizer, precision, progress, pieces"):
        opened(saved)
    with pytest.raises(FileNotFoundError, match=r"has no index\.json: no save\(\) into it was completed"):
        opened(tmp_path / "nowhere")


def test_the_pieces_of_another_model_are_refused_by_the_name_of_the_weight(saved):
    rewritten(saved, lambda index: index["config"].update(intermediate_size=12))
    with pytest.raises(ValueError, match=r"mlp\.gate_proj\.weight of shape \(8, 8\), its model \(8, 12\)"):
        opened(saved)


def test_a_file_with_other_arrays_than_the_index_says_is_refused(saved):
    path = sorted(saved.glob("pieces-*"))[0]
    arrays = load_file(path)
    key = next(key for key in arrays if key.endswith("/mean"))
    save_file({**arrays, key: arrays[key][:-1]}, path)
    with pytest.raises(ValueError, match=r"/mean has shape .* and index\.json says"):
        opened(saved)
    del arrays[key]
    save_file(arrays, path)
    with pytest.raises(ValueError, match=r"lacks .*/mean, which index\.json places there"):
        opened(saved)


KILLED = """
import os, signal, sys
from pathlib import Path
from safetensors.numpy import load_file
from parlab import run
from parlab.nn import AdamW
from parlab.train import Mesh, Trainer, read_index, save
from tests.train.models import model

folder, start = Path(sys.argv[1]), model(num_hidden_layers=1)

def saves(comm, number):
    save(Trainer(Mesh(comm, dp=2), start, AdamW()), folder, notes={"number": number})

def killed_at(moment):
    passed = 0
    def see(event, arguments):
        nonlocal passed
        if event in ("open", "os.rename", "os.remove") and str(folder) in str(arguments[0]):
            passed += 1
            if passed == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    return see

run(saves, 2, 0)
for moment in range(1, 100):
    child = os.fork()
    if child == 0:
        sys.addaudithook(killed_at(moment))
        run(saves, 2, moment)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    index = read_index(folder)
    for name in {entry["file"] for entry in index["pieces"]}:
        assert load_file(folder / name)
    print(index["notes"]["number"])
    if ended == 0:
        break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_killed_at_each_of_its_file_operations_a_save_leaves_the_last_one_whole(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [int(line) for line in done.stdout.split()]  # the number of the save that can be opened, after each kill
    assert len(found) > 8
    assert found[:4] == [0] * 4  # killed while the pieces are written
    assert all(number <= moment for moment, number in enumerate(found, start=1))
    assert found[-1] == len(found)
    assert len(list(tmp_path.iterdir())) == 3  # and what the others left is cleared up

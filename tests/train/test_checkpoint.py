"""Save under one mesh, open under another: the same state, the same next loss."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parlab import run
from parlab.nn import AdamW
from parlab.nn.llama import load as load_llama
from parlab.train import Mesh, Trainer, checkpoint, export, load, read_index, save
from parlab.train.index import write_index
from parlab.train.lock import locked
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
        return again.parts.replica.optimizer.lr, again.parts.replica.guard.max_norm

    assert run(program, 2, tmp_path / "a", {"step": np.int64(7)}).results == [(rate, norm)] * 2
    assert read_index(tmp_path / "a")["notes"] == {"step": 7}
    for notes in ({"map": np.ones(2)}, {"set": {1}}):
        with pytest.raises(ValueError, match=r"notes=\{"):
            run(program, 2, tmp_path / "b", notes)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True], ids=["untied", "tied"])
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


@pytest.mark.parametrize(("scale", "saved", "skipped"), [(18, (17, 0), [True, False]), (16, (16, 1), [False, True])])
def test_float16_goes_on_with_its_loss_scale_its_good_steps_and_the_masters_bits(tmp_path, scale, saved, skipped):
    place = {"mesh": dict(dp=2), "zero": 2}
    options = dict(dtype="float16", loss_scale=LossScale(2.0**scale, interval=2))
    start = model(num_hidden_layers=2, dtype="float32")
    goes_on, weights = run(trained, 2, place, start, tmp_path, **options).results[0]
    progress = read_index(tmp_path)["progress"]
    assert (progress["loss_scale"], progress["good_steps"]) == (2.0 ** saved[0], saved[1])
    found, again = run(resumed, 2, place, tmp_path).results[0]
    assert str(found) == str(goes_on)  # the norm of a skipped step is no number
    assert [result.skipped for result in found] == skipped
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert weights["model.norm.weight"].dtype == np.float16


def test_a_float32_run_goes_on_in_float16_with_a_loss_scale_that_begins(tmp_path):
    start, place = model(dtype="float32", num_hidden_layers=1), {"mesh": dict(dp=2), "zero": 1}
    (before, _), *_ = run(trained, 2, place, start, tmp_path, steps=2).results

    def program(comm):
        trainer = load(tmp_path, Mesh(comm, dp=2), xp=np, dtype="float16")
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


@pytest.fixture(scope="module")
def checkpoint_of_4_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    run(trained, 4, {"mesh": dict(dp=2, tp=2), "zero": 1}, model(num_hidden_layers=2), folder)
    return folder


@pytest.fixture
def saved(checkpoint_of_4_ranks, tmp_path):
    """A copy, which the test may damage."""
    return Path(shutil.copytree(checkpoint_of_4_ranks, tmp_path, dirs_exist_ok=True))


def opened(folder):
    return run(resumed, 2, {"mesh": dict(dp=2), "zero": 1}, folder)


def rewritten(folder, change=lambda index: None):
    """The index changed by a program: all its checksums are right."""
    index = read_index(folder)
    index["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in index["files"]}
    change(index)
    write_index(folder, index)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
@pytest.mark.parametrize("chosen", [min, max])
@pytest.mark.parametrize(("change", "problem"), [("append", "has {} twice"), ("remove", "lacks {}")])
def test_a_hole_and_a_piece_that_is_there_twice_are_refused_by_the_elements_of_their_weight(
    saved, name, chosen, change, problem
):
    """The table is cut by rows and the norm not at all, so the elements of a piece follow each other."""
    pieces = [piece for piece in read_index(saved)["pieces"] if piece["name"] == name]
    piece = chosen(pieces, key=lambda of: (of["start"], of["flat_start"]))
    start, total = piece["start"] * math.prod(piece["shape"][1:]) + piece["flat_start"], math.prod(piece["shape"])
    rewritten(saved, lambda index: getattr(index["pieces"], change)(piece))
    problem = problem.format(f"{start}:{start + piece['length']}")
    said = f"the checkpoint {problem} of the {total} elements of {name}"
    with pytest.raises(ValueError, match=re.escape(said)):
        opened(saved)


def as_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "change", "error", "said"),
    [
        ("pieces", lambda path: path.write_bytes(path.read_bytes()[:-100]), ValueError, "is damaged or truncated"),
        ("pieces", lambda path: path.unlink(), FileNotFoundError, "is missing"),
        ("pieces", as_folder, ValueError, "is a folder: a file is needed"),
        ("index.json", as_folder, ValueError, "is a folder: a file is needed"),
    ],
)
def test_a_file_that_is_truncated_missing_or_a_folder_is_refused_by_its_name(saved, name, change, error, said):
    path = sorted(saved.glob(f"{name}*"))[-1]
    change(path)
    with pytest.raises(error, match=f"{path.name} {said}"):
        opened(saved)


def test_an_index_that_is_cut_off_or_of_another_format_and_a_folder_without_one_are_refused(saved, tmp_path):
    whole = (saved / "index.json").read_text()
    (saved / "index.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        opened(saved)
    for format_ in ("parlab checkpoint 1", "parlab checkpoint 3", None, 2):
        (saved / "index.json").write_text(json.dumps({**json.loads(whole), "format": format_}))
        with pytest.raises(ValueError, match=rf"index\.json: format={format_!r}: .* reads 'parlab checkpoint 2' alone"):
            opened(saved)
    (saved / "index.json").write_text('{"format": "parlab checkpoint 2", "config": {}, "notes": {}}')
    with pytest.raises(ValueError, match=r"index\.json is damaged: its content does not fit its checksum"):
        opened(saved)
    with pytest.raises(FileNotFoundError, match=r"has no index\.json: no save\(\) into it was completed"):
        opened(tmp_path / "nowhere")


def test_a_bit_that_flips_anywhere_is_refused_by_the_name_of_its_file_or_changes_nothing(tmp_path):
    """2 flips a file, of a bit or a whole byte, by 25 seeds: each load is refused, or equal to the bit."""
    run(trained, 2, {"mesh": dict(tp=2), "zero": 1}, model(num_hidden_layers=1), tmp_path)

    def state(comm):
        trainer = load(tmp_path, Mesh(comm), xp=np)
        arrays = [x for piece in trainer.pieces() for x in (piece.master, piece.mean, piece.square)]
        return trainer.progress, trainer.parts.replica.optimizer, [x.tobytes() for x in arrays]

    (right,) = run(state, 1).results
    refused = 0
    for seed in range(25):
        draw = random.Random(seed)
        for path in sorted(tmp_path.iterdir()):
            content = path.read_bytes()
            changed = bytearray(content)
            changed[draw.randrange(len(content))] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
            path.write_bytes(changed)
            try:
                found, said = run(state, 1).results, path.name
            except ValueError as error:
                found, said = [right], str(error)
                refused += 1
            assert (found, path.name in said) == ([right], True), (seed, said)
            path.write_bytes(content)
    assert refused > 70  # of 75: the others hit blanks between the index's fields


def test_the_pieces_of_another_model_are_refused_by_the_name_of_the_weight(saved):
    rewritten(saved, lambda index: index["config"].update(intermediate_size=12))
    with pytest.raises(ValueError, match=r"mlp\.gate_proj\.weight of shape \(8, 8\), its model \(8, 12\)"):
        opened(saved)


SHAPES = r": .*/mean has shape .* and index\.json says"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: {"": x[:-1]}, SHAPES),
        (lambda x: {"": np.append(x, 0.0)}, SHAPES),
        (lambda x: {"": x[None]}, SHAPES),
        (lambda x: {}, r" lacks .*/mean, which index\.json places there"),
    ],
)
def test_a_file_whose_array_is_shorter_longer_of_more_axes_or_not_there_is_refused(saved, change, said):
    path = sorted(saved.glob("pieces-*"))[0]
    arrays = load_file(path)
    key = next(key for key in arrays if key.endswith("/mean"))
    changed = {key + more: x for more, x in change(arrays.pop(key)).items()}
    save_file({**arrays, **changed}, path)
    rewritten(saved)
    with pytest.raises(ValueError, match=path.name + said):
        opened(saved)


def test_a_second_save_into_the_folder_at_the_same_time_is_refused_and_changes_nothing(saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with (
        locked(saved, "saving"),
        pytest.raises(ValueError, match=rf"another run is saving there \(process {os.getpid()} on "),
    ):
        run(trained, 2, {"mesh": dict(dp=2), "zero": 1}, model(num_hidden_layers=2), saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_no_rank_returns_from_a_save_before_its_index_is_there(tmp_path, monkeypatch):
    right = checkpoint.write_index

    def slowly(*args):
        time.sleep(0.2)
        right(*args)

    def program(comm):
        save(Trainer(Mesh(comm, dp=2), model(num_hidden_layers=1), AdamW()), tmp_path)
        return (tmp_path / "index.json").exists()

    monkeypatch.setattr(checkpoint, "write_index", slowly)
    assert run(program, 2).results == [True, True]


@pytest.mark.parametrize(
    ("place", "tied"), [({"mesh": dict(pp=3), "zero": 1}, True), ({"mesh": dict(dp=2, pp=3), "zero": 3}, False)]
)
def test_a_second_save_and_a_second_run_of_a_tied_model_on_uneven_stages_go_on_bit_for_bit(tmp_path, place, tied):
    """4 layers on 3 ranks: 2, 1 and 1; the middle rank holds neither end of the tied table."""
    start = model(tie_word_embeddings=tied)
    first, _ = run(trained, ranks(place), place, start, tmp_path, max_norm=0.5).results[1]
    again = run(saves_again, ranks(place), place, tmp_path).results
    last = run(resumed, ranks(place), place, tmp_path, 2).results
    for (second,), (found, _) in zip(again, last, strict=True):
        assert [second, *found] == first
    assert read_index(tmp_path)["notes"] == {"saves": 2}


def saves_again(comm, place, folder):
    kept = {name: value for name, value in place.items() if name != "mesh"}
    trainer = load(folder, Mesh(comm, **place["mesh"]), xp=np, **kept)
    found = [trainer.step(*TEXT[1])]
    save(trainer, folder, notes={"saves": 2})
    return found


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

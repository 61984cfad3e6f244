"""The commands that train, go on and trace."""

import hashlib
import itertools
import json
import math
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from parlab import cli, run
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.nn.optimizer import clip_gradients
from parlab.pipeline import gpipe
from parlab.train import Mesh, Samples, Trainer, read_index, save
from parlab.training_run import (
    SCHEDULES,
    Settings,
    entropy_of_text,
    read_settings,
    read_text,
    schedule_of,
    train,
)
from parlab.training_run.going_on import steps_done

SMALL = """
[model]
hidden_size = 8
intermediate_size = 8
num_hidden_layers = 4
num_attention_heads = 2
[data]
characters = 200
length = 8
batch = 12
[training]
steps = 6
warmup_steps = 1
dtype = "float64"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_the_losses_are_a_serial_loops_whose_rate_rises_in_2_steps_and_falls_by_half_a_cosine_to_a_tenth(config):
    settings = replace(read_settings(config), warmup_steps=2)
    text = read_text(settings)
    samples = Samples(text.tokens, settings.length)
    serial = Llama.random(LlamaConfig(text.vocab_size, **settings.model), dtype="float64")
    optimizer, expected = AdamW(weight_decay=0.1), []
    rates = [2e-3, 4e-3, *(0.4e-3 + 3.6e-3 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4))]
    for step, rate in enumerate(rates):
        loss, gradients = serial.loss_and_gradients(*samples.batch(12 * step, 12))
        optimizer.step(serial.weights, clip_gradients(gradients, 1.0)[0], lr=rate)
        expected.append(loss)
    assert train(settings, {}).results[0] == pytest.approx(expected, rel=1e-10, abs=0)


def test_a_checkpoint_is_saved_every_2_steps_and_at_the_end(config, tmp_path):
    saved = []

    def look(step, *_):
        index = read_index(tmp_path) if (tmp_path / "index.json").exists() else {"progress": {"steps": 0}}
        saved.append(index["progress"]["steps"])

    train(read_settings(config), {}, folder=tmp_path, every=2, stop_after=5, tell=look)
    assert saved == [0, 2, 2, 4, 5]


def test_of_6_steps_of_2_seconds_and_96_tokens_it_tells_48_tokens_a_second_and_the_seconds_that_are_left(
    config, monkeypatch
):
    clock = itertools.count(0, 2)
    monkeypatch.setattr("parlab.training_run.loop.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    told = []
    train(read_settings(config), {}, tell=lambda step, loss, rate, left, skipped: told.append((step, rate, left)))
    assert told == [(step, 48, 12 - 2 * step) for step in range(1, 7)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_that_the_command_names_can_be_built(schedule):
    assert schedule_of(schedule, 2).num_ranks == 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_on_1_rank_each_microbatch_is_done_before_the_next_begins(schedule):
    assert str(schedule_of(schedule, 1, 3)) == "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2"


def test_on_1_rank_12_microbatches_hold_less_than_gpipes_and_lose_the_same(config):
    schedules = schedule_of("gpipe", 1, 12), gpipe(1, 12)
    ours, gpipes = (train(read_settings(config), {}, schedule=schedule, stop_after=2) for schedule in schedules)
    assert ours.results == gpipes.results
    assert ours.timeline.peak_bytes(0) < gpipes.timeline.peak_bytes(0)


def test_a_run_that_stops_and_goes_on_elsewhere_says_the_losses_of_one_that_does_not(config, tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert cli.main(["train", "--config", str(config), "--mesh", "dp=2", "--folder", folder, "--steps", "3"]) == 0
    assert cli.main(["train", "--resume", "--folder", folder, "--mesh", "tp=2", "--zero", "0"]) == 0
    said = capsys.readouterr().out
    assert cli.main(["train", "--resume", "--folder", folder]) == 2
    assert "all of its 6 steps are done" in capsys.readouterr().err
    assert cli.main(["train", "--config", str(config)]) == 0
    whole = capsys.readouterr().out
    last = [next(line for line in text.splitlines() if line.startswith("step    6/6")) for text in (said, whole)]
    assert last[0].split()[:4] == last[1].split()[:4]  # step, its number, loss, its value
    unseen = "which no model can pass on text that it has not seen"
    assert f"; the entropy of the text's source, {unseen}, is 1.4148\n" in whole


def test_of_27_steps_the_first_each_25th_and_the_last_are_printed(config, capsys):
    config.write_text(SMALL.replace("steps = 6", "steps = 27"))
    assert cli.main(["train", "--config", str(config)]) == 0
    printed = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert printed == ["1/27", "25/27", "27/27"]


@pytest.mark.parametrize("notes", [None, {"epoch": 3}, {"model": {}, "epoch": 3}])
def test_a_checkpoint_that_the_command_did_not_write_is_not_gone_on_with(notes, tmp_path, capsys):
    start = Llama.random(LlamaConfig(vocab_size=5, **read_settings().model))
    run(lambda comm: save(Trainer(Mesh(comm), start, AdamW()), tmp_path, notes=notes), 1)
    assert cli.main(["train", "--resume", "--folder", str(tmp_path)]) == 2
    said = f"parlab train: {tmp_path}: its checkpoint was not written by `parlab train`"
    assert capsys.readouterr().err.startswith(said)


def test_a_run_whose_gradients_overflow_says_so_at_the_first_skip_and_at_the_end_with_status_1(tmp_path, capsys):
    path = tmp_path / "fast.toml"
    path.write_text(SMALL.replace("warmup_steps = 1", "warmup_steps = 0\nlr = 1e30"))
    assert cli.main(["train", "--config", str(path), "--float16"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "step 2 is skipped: a gradient overflowed, and no weight changed"
    assert said[-2] == "5 of 6 steps skipped: a gradient overflowed"
    assert said[-1].startswith("mean loss of the last 6 steps nan")
    assert sum("skipped" in line for line in said) == 2


def test_trace_writes_a_step_for_perfetto_with_the_names_of_the_groups(config, tmp_path, capsys):
    path = tmp_path / "step.json"
    assert cli.main(["trace", str(path), "--config", str(config), "--mesh", "dp=2,tp=2"]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    assert {"tp: all_reduce", "data: reduce_scatter"} <= {event["name"] for event in events}
    assert "ui.perfetto.dev" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("axes", "options", "said"),
    [
        ({"xp": 2}, {}, "axis of the mesh='xp': use one of dp, pp, cp, tp"),
        ({"dp": 0}, {}, "dp=0: must be a whole number, at least 1"),
        (None, {}, "axes=None: must be a Mapping"),
        ({}, {"resume": True}, "resume=True: needs a folder"),
        ({}, {"resume": "no"}, "resume='no': must be True or False"),
        ({}, {"folder": ""}, "folder='': must be the path of a folder"),
    ],
)
def test_bad_input_is_refused_before_a_text_is_drawn(axes, options, said, monkeypatch):
    monkeypatch.setattr("parlab.training_run.loop.read_text", None)
    with pytest.raises(ValueError, match=re.escape(said)):
        train(read_settings(), axes, **options)


def own_text(config, text):
    """Settings whose text is a file."""
    text.write_text("to be or not to be, that is the question: " * 9)
    config.write_text(SMALL.replace("characters = 200", f"text = '{text.as_posix()}'"))
    return ["train", "--config", str(config)]


def test_a_text_that_changed_since_the_checkpoint_is_refused_by_its_name(config, tmp_path, capsys):
    text, folder = tmp_path / "own.txt", ["--folder", str(tmp_path / "run")]
    assert cli.main([*own_text(config, text), *folder, "--steps", "2"]) == 0
    text.write_text(text.read_text().replace("t", "q"))  # as many characters, of as many kinds, in the same places
    capsys.readouterr()
    assert cli.main(["train", "--resume", *folder]) == 2
    assert f"text='{text.as_posix()}' is not the text that its checkpoint was trained on" in capsys.readouterr().err
    own_text(config, text)
    assert cli.main(["train", "--resume", *folder]) == 0


def test_a_checkpoint_trained_on_another_drawn_text_is_refused(config, tmp_path):
    settings = read_settings(config)
    train(settings, {}, folder=tmp_path, stop_after=2)
    drawn = read_text(settings)
    assert steps_done(tmp_path, settings, drawn) == 2
    with pytest.raises(ValueError, match="the drawn text is not the text that its checkpoint was trained on"):
        steps_done(tmp_path, settings, drawn._replace(checksum="0" * 64))


def test_samples_that_are_no_whole_number_of_batches_are_refused(config, tmp_path):
    settings = read_settings(config)
    train(settings, {}, folder=tmp_path, stop_after=2)
    with pytest.raises(ValueError, match="progress samples=24: no whole number of batches of 7; go on with"):
        train(replace(settings, batch=7), {}, folder=tmp_path, resume=True)


def test_two_runs_in_one_folder_the_second_is_refused_and_the_first_goes_on(config, tmp_path):
    seen = []

    def meanwhile(step, *_):
        with pytest.raises(ValueError, match=rf"another run is training there \(process {os.getpid()} on "):
            train(read_settings(config), {}, folder=tmp_path)
        seen.append(step)

    train(read_settings(config), {}, folder=tmp_path, every=1, tell=meanwhile)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert read_index(tmp_path)["progress"]["steps"] == 6


def test_a_run_that_is_refused_leaves_no_folder(config, tmp_path, capsys):
    assert cli.main(["train", "--config", str(config), "--mesh", "dp=5", "--folder", str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nrate = 1", r"name in \[training\]='rate': use one of steps, lr"),
        ("[train]", r"table='train': use one of model, data, training"),
        ("[training]\nlr = -1.0", "lr=-1.0"),
        ("[data]\nbatch = 0", "batch=0"),
        ("[data", ""),
        ("[model]\nhidden_sise = 8", r"name in \[model\]='hidden_sise': use one of hidden_size, "),
        ("[model]\nvocab_size = 8", r"name in \[model\]='vocab_size': use one of hidden_size, "),
        ("", r"\[model\] lacks hidden_size, intermediate_size, num_hidden_layers, num_attention_heads"),
        ("model = 3", r"model=3: must be a table, \[model\]"),
        ("[[model]]", r"model=\[\{\}\]: must be a table, \[model\]"),
        ("data = 3", r"data=3: must be a table, \[data\]"),
        ("[data]\ntext = 3", "text=3: must be a string"),
        ("[training]\nwarmup_steps = 'a'", "warmup_steps='a': must be a whole number, at least 0"),
        ("[training]\nsteps = 10", "steps=10: must be more than warmup_steps=25: use more, or set fewer warmup_steps"),
        ("[training]\nweight_decay = 'a'", "weight_decay='a': must be a number"),
        ("[training]\nmax_norm = 'a'", "max_norm='a': must be a number"),
        ("[training]\ndtype = 'float16'", "dtype='float16': use one of float32, float64"),
        ("[training]\nseed = -1", "seed=-1: must be a whole number, at least 0"),
        ("[training]\nauxiliary = -1", "auxiliary=-1: must be a number, at least 0"),
        ("[training]\nbias_rate = -1", "bias_rate=-1: must be a number, at least 0"),
        (SMALL.replace("hidden_size = 8", "hidden_size = 7", 1), "hidden_size 7 does not divide among"),
    ],
)
def test_settings_that_are_wrong_are_refused_by_file_and_name(tmp_path, text, words):
    (tmp_path / "small.toml").write_text(text)
    with pytest.raises(ValueError, match=r"small\.toml: .*" + words):
        read_settings(tmp_path / "small.toml")


def test_a_file_that_is_no_text_is_refused_by_its_name(tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(b"\xff\xd8")
    with pytest.raises(ValueError, match=r"picture: 'utf-8' codec can't decode"):
        read_settings(path)
    with pytest.raises(ValueError, match=r"text='.*picture': .*; a text in UTF-8 is needed"):
        read_text(Settings(read_settings().model, text=str(path)))


def test_a_text_of_your_own_is_read_by_its_characters(tmp_path):
    (tmp_path / "text").write_text("abba née")
    settings = Settings(read_settings().model, text=str(tmp_path / "text"))
    tokens, vocab_size, checksum = read_text(settings)
    assert tokens.tolist() == [1, 2, 2, 1, 0, 4, 5, 3]
    assert vocab_size == 6
    assert checksum == hashlib.sha256("abba née".encode()).hexdigest()
    assert entropy_of_text(settings) is None


def test_the_built_in_mixtral_has_the_losses_of_one_rank_on_a_mesh_with_ep_and_starts_as_the_dense_model():
    mixture, dense = (
        replace(read_settings(model=name), characters=4096) for name in ("mixtral-pocket", "llama-pocket")
    )
    one, mesh = (train(mixture, axes, stop_after=4).results[0] for axes in ({}, {"dp": 4, "ep": 2}))
    assert one == pytest.approx(mesh, rel=1e-5)
    assert train(dense, {}, stop_after=4).results[0] == pytest.approx(one, rel=0.02)


def test_a_balance_without_experts_and_a_model_that_is_not_built_in_are_refused():
    with pytest.raises(ValueError, match="settings='llama': must be a Settings"):
        train("llama", {})
    with pytest.raises(ValueError, match="model=None: must be a Mapping"):
        Settings(None)
    with pytest.raises(ValueError, match=r"auxiliary=0.1, bias_rate=0.0: the model has no experts"):
        Settings(read_settings().model, auxiliary=0.1)
    with pytest.raises(ValueError, match="model='gpt-pocket': use one of llama-pocket, mixtral-pocket"):
        read_settings(model="gpt-pocket")

"""The command's text and JSON."""

from __future__ import annotations

import json

import pytest

from parlab.cli import main
from parlab.world.cluster import CLUSTERS

ASKED = ["plan", "--model", "8b", "--gpus", "16", "--batch", "16", "--sequence", "4096"]


def test_the_command_prints_the_best_both_bills_and_why(capsys):
    assert main([*ASKED, "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "layouts are possible" in lines[0]
    assert sum(" MFU " in line for line in lines) == 3
    assert [line for line in lines if line[0].isupper()] == [
        "Time of the first, by kind",
        "Memory of its fullest rank, by kind",
        "One field turned",
    ]
    time, memory, turned = (place for place, line in enumerate(lines) if line[0].isupper())
    for bill in (lines[time + 1 : memory], lines[memory + 1 : turned]):
        assert sum(float(line.split("%")[0].split()[-1]) for line in bill) == pytest.approx(100, abs=0.6)
    assert sum(float(line.split()[0]) for line in lines[time + 1 : memory]) == pytest.approx(
        float(lines[1].split()[0]), abs=6e-3
    )


def test_the_json_has_the_same(capsys):
    assert main([*ASKED, "--json", "--offload", "--memory", "60", "--cluster", "dgx_a100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["best"]) == 5
    assert found["best"][0]["layout"]["dp"] <= 16
    assert sum(found["best"][0]["bytes"].values()) <= 60 * 2**30
    assert {"knob", "binds", "change", "bytes"} <= set(found["why"][0])
    assert found["memory"] == 60 * 2**30


def test_the_command_says_at_which_usable_memory_its_verdict_changes(capsys):
    asked = ["plan", "--model", "405b", "--gpus", "16384", "--batch", "2048", "--sequence", "8192"]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("usable memory decides: up to 75.0 GiB the best is dp 128, pp 8, cp 4, tp 4")
    assert lines[-2].startswith("  from 75.0 GiB on dp 256, pp 4, cp 4, tp 4")
    assert lines[-1].startswith("  from 76.3 GiB on dp 128, pp 8, cp 4, tp 4")


@pytest.mark.parametrize("model", ["175b", "GPT-175B"])
def test_a_gpt_is_known_by_its_size_too_and_memory_without_end_is_null(model, capsys):
    assert main([*ASKED, "--model", model, "--sequence", "2048", "--cluster", "classroom", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_command_plans_for_each_cluster_it_names_the_classroom_with_memory_without_end_too(cluster, capsys):
    assert main([*ASKED, "--cluster", cluster]) == 0
    assert ("fit in inf B" in capsys.readouterr().out) == (cluster == "classroom")

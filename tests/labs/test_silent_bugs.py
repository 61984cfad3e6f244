"""Six silent bugs: what each check sees of them, their prices, and the checker of lesson 07's core exercise."""

from functools import partial
from itertools import product

import pytest

from parlab.labs import Suspect, compete, find_bug, suspect
from parlab.labs.diagnosis import MOST, _tells
from parlab.labs.silent_bugs import BUGS, HEADS, NONE, PRICES, SEES
from tests.labs.answers import refused

wrong = partial(refused, "07.find_bug")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_seen_by_these_checks_and_the_others_are_blind_to_it(bug, seed):
    """On the first model without the dear check, ten losses: test_limits.py and test_checked_models.py ask for it."""
    checks = set(PRICES) - ({"ten losses"} if seed == 0 else set())
    assert {check for check in checks if Suspect(bug, seed).sees(check)} == checks & set(SEES[bug])


def test_a_right_trainer_is_right_for_every_check():
    assert not any(Suspect(NONE).sees(check) for check in PRICES)


def test_an_extra_mean_halves_the_norm_and_every_gradient_and_no_loss_of_ten():
    patient = Suspect("extra mean")
    assert patient.ask("norm") == 0.5
    assert set(patient.ask("gradients").values()) == {0.5}
    assert patient.ask("ten losses") == [1.0] * 10
    assert patient.price == 2 + 5 + 20
    assert repr(patient).endswith("asked for norm (2), gradients (5), ten losses (20): 27 in all")


def test_copies_that_differ_name_the_weights_that_were_not_summed():
    for bug, part in (("ends", "embed_tokens"), ("norms", "layernorm"), ("K/V heads", "_proj")):
        names = Suspect(f"{bug} not summed").ask("copies")
        assert names
        assert all(part in name for name in names)


def test_a_name_draws_one_bug_whatever_its_case_and_a_class_has_all_six():
    assert suspect("Ada Lovelace").ask("norm") == suspect(" ada lovelace").ask("norm")
    assert len({suspect(f"student {number}")._bug for number in range(30)}) == 6
    with pytest.raises(ValueError, match="name=7: must be a string"):
        suspect(7)
    with pytest.raises(ValueError, match="check='weights': use one of copies, loss"):
        suspect("Ada").ask("weights")


def by_the_loss(ask):
    return "none" if ask("loss") == 1 else "mean of means"


def gradients_first(ask):
    ask("gradients")
    return find_bug(ask)


def test_a_guess_a_right_trainer_accused_and_an_unknown_bug_are_told():
    wrong(lambda ask: "extra mean", "likely cause: nothing was asked, so it is a guess")
    wrong(lambda ask: "cp", "expected one of 'extra mean'")
    blind = "copies cannot see 'extra mean': another check can, and it comes out right here"
    wrong(lambda ask: "ends not summed" if ask("copies") else "extra mean", f"with a right trainer|{blind}")
    all_right = "all of its checks come out right; such a trainer has no bug: 'none'"
    wrong(lambda ask: "ends not summed" if ask("copies") or ask("norm") else "none", all_right)


def half_not_known(ask):
    def other_than_half(check):
        found = ask(check)
        return 0.75 if found == 0.5 else found

    return find_bug(other_than_half)


def norms_for_the_table(ask):
    return "norms not summed" if any("embed" in name for name in ask("copies")) else find_bug(ask)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (half_not_known, "'norm' tells the two apart: here it is 0.5, with 'copies counted' 1.318"),
        (norms_for_the_table, "'copies' tells the two apart: here it is ['model.embed_tokens.weight'], with 'norms"),
    ],
)
def test_the_cause_says_whether_what_was_asked_tells_the_two_bugs_apart(answer, cause):
    wrong(answer, f"likely cause: {cause}")


def test_a_check_that_is_asked_twice_and_one_after_the_bug_is_certain_are_named():
    def twice(ask):
        return norm_first(lambda check: (ask(check), ask(check))[0] if check == "norm" else ask(check))

    def all_at_once(ask):
        answers = {check: ask(check) for check in ("copies", "norm", "loss", "gradients")}
        return find_bug(answers.get)

    wrong(twice, "'norm' is asked for more than once: keep its answer")
    wrong(all_at_once, "after copies the bug is certain: return its name then")


@pytest.mark.parametrize("seed", range(3))
def test_what_tells_two_bugs_apart_does_so_on_every_model(seed):
    for bug, other, check in product((NONE, *BUGS), (NONE, *BUGS), ("copies", "loss", "norm")):
        if _tells(check, bug, other):
            assert Suspect(bug, seed).ask(check) != Suspect(other, seed).ask(check)


def norm_first(ask):
    norm = ask("norm")
    if norm in (1, 0.5):
        return "none" if norm == 1 else "extra mean"
    apart = " ".join(ask("copies"))
    parts = {"embed": "ends not summed", "layernorm": "norms not summed", "k_proj": "K/V heads not summed"}
    for part, bug in parts.items():
        if part in apart:
            return bug
    return "copies counted" if ask("loss") == 1 else "mean of means"


UNASKED = 1


def guess(ask):
    return "none"


def test_copies_first_pay_2_71_on_average_and_the_norm_first_3_29():
    contest = compete({"copies first": find_bug, "norm first": norm_first, "guess": guess})
    assert contest.mean("copies first") == 19 / 7
    assert contest.mean("norm first") == 23 / 7
    assert contest.mean("guess") is None
    assert max(contest.prices["copies first"].values()) == max(contest.prices["norm first"].values()) == MOST
    assert repr(compete({"copies first": find_bug, "guess": guess})).splitlines() == [
        "                      copies first     guess",
        "          extra mean             3     wrong",
        "       mean of means             5     wrong",
        "    norms not summed             1     wrong",
        "K/V heads not summed             1     wrong",
        "     ends not summed             1     wrong",
        "      copies counted             5     wrong",
        "                none             3         0",
        "                mean          2.71     wrong",
    ]


@pytest.mark.parametrize(("diagnoses", "said"), [({}, "diagnoses={}: must be"), ({"a": 1}, "'a'.*must be a function")])
def test_a_contest_of_nobody_and_of_no_function_is_refused(diagnoses, said):
    with pytest.raises(ValueError, match=said):
        compete(diagnoses)


def test_a_threshold_of_1_2_on_the_norm_instead_of_the_loss_is_refused():
    def by_the_size(ask):
        norms = []

        def remembered(check):
            norms.append(ask(check))
            return norms[-1]

        answer = find_bug(lambda check: UNASKED if check == "loss" else remembered(check))
        if answer not in ("copies counted", "mean of means"):
            return answer
        return "copies counted" if norms[-1] > 1.2 else "mean of means"

    as_well = "so far 'copies counted' fits as well (the size of a wrong norm depends on the model): ask"
    wrong(by_the_size, f"a trainer whose bug is 'mean of means', on long prompts|{as_well}")


def test_loss_and_thresholds_on_the_norm_are_refused_on_every_draw():
    def by_thresholds(ask):
        if ask("loss") != 1:
            return "mean of means"
        norm = ask("norm")
        small = "norms not summed" if norm > 0.98 else HEADS if norm > 0.9 else "ends not summed"
        return {1: NONE, 0.5: "extra mean"}.get(norm, "copies counted" if norm > 1 else small)

    wrong(by_thresholds, "on long prompts")

"""The usual mistakes of a planner, each made here on purpose: a named check sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from parlab.pipeline import closed_forms
from parlab.plan import (
    LLAMA_8B,
    LLAMA_405B,
    PLAIN,
    Hardware,
    Layout,
    Software,
    estimate,
    layout,
    machine,
    search,
    seconds,
)
from parlab.tensor.costs import llama_kept_by_place
from parlab.world import CLASSROOM, DGX_H100
from tests.pipeline import test_costs
from tests.plan import test_counts, test_mixtures, test_search, test_software, test_terms, test_validation
from tests.sequence.mutation import copy_of

PLAN = {module.__name__.rpartition(".")[2]: module for module in (layout, machine, seconds, closed_forms)}
USERS = {name: __import__(f"parlab.plan.{name}", fromlist=["x"]) for name in ("estimate", "search", "validation")}


def in_flight() -> None:
    found = estimate(LLAMA_8B, CLASSROOM, Layout(pp=4), batch=8, sequence=4096).bytes["activations"]
    assert found == 4 * 9 * sum(llama_kept_by_place(LLAMA_8B, 1, 4096, 1, 2).values())


def clock() -> None:
    test_counts.test_a_tensor_parallel_step_takes_the_seconds_of_the_clock(2, CLASSROOM)


def state() -> None:
    found = estimate(LLAMA_8B, CLASSROOM, Layout(dp=2, cp=2), batch=2, sequence=4096).bytes
    assert found["optimizer"] == pytest.approx(12 * LLAMA_8B.num_parameters / 4)


def kept() -> None:
    test_counts.test_kept_bytes_of_a_layer_equal_the_counted_ones(2, True)


def layer_times() -> None:
    test_validation.test_10_layer_times_within_5_percent_activations_within_1_and_zeros_table_exact()


def turns() -> None:
    test_software.test_behind_long_products_nothing_hides_the_two_all_gathers_of_dy()


def order() -> None:
    test_software.test_a_message_between_stages_leaves_the_node_unless_t_c_d_p_is_at_most_8(4, False)


def tiles() -> None:
    test_terms.test_a_gpts_products_are_those_of_4_matrices_and_the_head_with_dx_and_dw_in_their_own_tiles()


def dealt() -> None:
    test_software.test_layers_are_dealt_so_that_the_last_stage_with_its_head_is_no_slower(LLAMA_8B, 4, 9, 6)


def imbalance() -> None:
    test_software.test_imbalance_is_the_slowest_stage_less_the_true_mean_of_layers_that_do_not_divide(6, [2, 2, 1, 1])


def traffic() -> None:
    test_software.test_zero_1_all_reduces_4_bytes_a_gradient_in_plain_software_and_then_gathers_2_a_weight(PLAIN, 2)


def makespan() -> None:
    for heavier in (True, False):
        test_costs.test_closed_form_of_the_step_equals_simulate_on_300_random_pipelines_with_an_uneven_last_stage(
            "1f1b", heavier
        )


def transfers() -> None:
    test_costs.test_makespan_with_transfers_that_are_waited_for_is_the_simulated_one("1f1b", 4, 8, 2)


def fits() -> None:
    best = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).best
    assert best.total_bytes <= 80e9
    assert (best.layout.tp, best.layout.pp) == (8, 16)


def forbidden() -> None:
    test_search.test_the_neighbour_with_dp_256_is_2_percent_faster_and_has_77_7_gib_and_stands_beside_the_one_that_fits()


def once() -> None:
    test_search.test_no_layout_is_listed_twice_where_cp_gives_its_ranks_to_tp()


def flips() -> None:
    test_search.test_between_72_and_79_6_gib_of_an_h100_the_best_layout_changes_at_76_2_and_77_0()


def one_stream() -> None:
    test_software.test_one_stream_waits_for_2m_messages_of_2_stages_and_4m_and_2_p_less_8_of_more_as_action_by_action(8)


def start() -> None:
    test_terms.test_one_chunk_a_rank_waits_for_its_first_weights_and_for_the_last_pass_of_its_gradients_whole()


def strides() -> None:
    test_software.test_ranks_of_dp_lie_t_c_apart_where_the_pipeline_is_outermost_and_t_c_p_where_data_is(
        ("tp", "cp", "dp", "pp"), 4 * 3, 4, 2
    )


def logit() -> None:
    test_software.test_a_loss_of_8_bytes_a_logit_more_is_held_on_the_last_stage()


def three() -> None:
    test_software.test_a_layers_backward_has_4_turns_6_with_sequence_parallelism_and_6_or_4_in_plain_software(
        PLAIN, False, 6
    )


def batch() -> None:
    with pytest.raises(ValueError, match="batch 16 must be a multiple"):
        estimate(LLAMA_8B, CLASSROOM, Layout(dp=3), batch=16, sequence=4096)


def mixture(name: str) -> Callable[[], None]:
    return lambda: test_mixtures.test_bytes_of_a_step_of_a_mixtral_are_those_that_are_counted(name)


def mixture_kept() -> None:
    test_mixtures.test_the_kept_bytes_of_the_experts_are_those_of_the_layers_cache(2)


def mixture_state() -> None:
    test_mixtures.test_state_bytes_of_mixtral_8x7b_are_those_of_the_closed_form_beside_the_embeddings(4, 2)


def exchange() -> None:
    test_mixtures.test_an_exchange_takes_the_longer_of_its_way_between_nodes_and_inside(16, 2, 4)


MUTANTS: dict[str, tuple[str, str, str, Callable[[], None]]] = {
    "in flight 1": ("closed_forms", "xp.minimum(m * v, ", "xp.minimum(1, ", in_flight),
    "in flight m": ("closed_forms", "xp.minimum(m * v, ", "xp.maximum(m * v, ", in_flight),
    "head forgotten": ("seconds", "case.hidden_size, case.vocab_size / t)", "0.0, 0.0)", clock),
    "loss forgotten": ("seconds", "turn, 0) + sums", "turn, 0)", clock),
    "ZeRO over d instead of d·c": ("layout", "self.d * self.c  #", "self.d  #", state),
    "norms off sequence parallelism": ("seconds", "22 * E / case.token_ranks", "22 * E", layer_times),
    "norms kept whole under sequence parallelism": ("estimate", "inputs) / case.token_ranks", "inputs)", kept),
    "all-gathers of dY hidden": ("seconds", "case.sequence_parallel, 2, 0)", "True, 0, 0)", turns),
    "mean stage for slowest": ("closed_forms", "xp.maximum(m * end + before, quick)", "mean + before", makespan),
    "v ignored": ("closed_forms", "rest = (v - 1) * chunk.both", "rest = 0 * v", makespan),
    "bubble of p instead of p − 1": ("closed_forms", "(p - 2) * chunk.both  #", "(p - 1) * chunk.both  #", makespan),
    "no transfer waited for": ("closed_forms", "way = 2 * (", "way = 0 * (", transfers),
    "the pipeline's ranks beside each other": ("seconds", 'case.stride("pp") * case.pp', "case.tp * case.pp", order),
    "a wave never ends": ("machine", "np.ceil(np.ceil(rows / a)", "(np.ceil(rows / a)", tiles),
    "dW in the tiles of the forward": ("seconds", "machine.product(k, n, m,", "machine.product(n, k, m,", tiles),
    "the head is no layer": ("layout", "tried + head)", "tried)", dealt),
    "the mean of equal stages": ("seconds", "mean + more - case.microbatches", "mean + more - mean + 0 * case.microbatches", imbalance),
    "gradients travel in 16 bits": ("layout", "software.gradient or state", "state", traffic),
    "d that does not divide the batch": ("layout", "B % (d * b) != 0", "B % (d * b) < 0", batch),
    "a transfer a microbatch forgotten": ("seconds", "4 * m + 2 * (p - 4)", "4 * m", one_stream),
    "a collective starts at each hop": ("machine", "+ np.where(size > 1", "+ (size - 1) * np.where(size > 1", start),
    "the ranks of cp as those of tp": ("layout", '"cp": self.c, "pp"', '"cp": self.t, "pp"', strides),
    "the loss holds no float32": ("estimate", " + case.software.logit)", ")", logit),
    "each product sums with the others": ("layout", "else 3  #", "else 2  #", three),
    "GB for GiB": ("search", "nbytes <= memory)", "nbytes <= memory * 1.073741824)", fits),
    "what memory forbids is not shown": ("search", "*forbidden[:1]", "*forbidden[:0]", forbidden),
    "a layout twice": ("search", "listed.update(chosen)", "listed.update([])", once),
    "the verdict of one limit": ("search", "<= high]", "<= low]", flips),
    "experts sharded over all of dp · cp": ("layout", "self.data / self.ep", "self.data", mixture("dp, ep")),
    "rows travel one way": ("estimate", "(4 + 2 * again)", "(2 + 2 * again)", mixture("ep over all")),
    "experts cut by tp": ("layout", "/ self.ep * self.expert", "/ self.ep / self.t * self.expert", mixture_state),
    "experts' gradients not summed over tp": ("estimate", "layer + mixture", "layer", mixture("sequence parallel")),
    "answers not kept": ("estimate", "(2 * case.hidden_size + 3", "(case.hidden_size + 3", mixture_kept),
    "the optimizer's experts whole": ("estimate", "experts / over_experts[stage]", "experts", mixture_state),
    "all of ep in one node": ("seconds", "(1 - near / case.ep)", "0 * near", exchange),
    "memory ignored": ("search", "nbytes <= memory)", "nbytes > 0)", fits),
}  # fmt: skip


def use(copied: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all that use the module; its classes that do not calculate, and the devices, are the original's."""
    original = USERS.get(name) or PLAN[name]
    kept = {
        attribute: value for attribute, value in vars(original).items() if isinstance(value, type | Hardware | Software)
    }
    vars(copied).update({attribute: kept[attribute] for attribute in kept.keys() - {"Case", "Machine", "Plans"}})
    for user in (
        *USERS.values(),
        *PLAN.values(),
        test_counts,
        test_costs,
        test_mixtures,
        test_software,
        test_terms,
        test_search,
    ):
        for attribute, value in vars(copied).items():
            if getattr(value, "__module__", "") == original.__name__ and hasattr(user, attribute):
                monkeypatch.setattr(user, attribute, value)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    module, old, new, check = MUTANTS[name]
    check()
    use(copy_of(USERS.get(module) or PLAN[module], old, new), module, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()

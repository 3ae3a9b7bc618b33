"""Change one operator or operand at a time that soundness hangs on, and see a test die.

python .ci/mutants.py              # every mutant
python .ci/mutants.py radius       # those whose name contains every word given
python .ci/mutants.py --bound      # no test runs: does every row find its place and its tests?
python .ci/mutants.py --untouched  # first: do the tests pass while nothing is changed?

A row is bound to the syntax tree and to names, so that reformatting a file, or moving or renaming
it, costs nothing. It names

* a function by its qualified name, with the end of its file's path before it where functions of
  several files have the piece ("federated/statements.py::_hidden");
* the piece of it that is changed, as source text: an expression, a statement or a keyword argument,
  found by its structure, exactly once; "..." stands for what is there: a body, an expression, the
  rest of a list or of arguments ("if rest: ...", "clip(rows, ...)");
* what takes its place;
* tests by the names of their functions, wherever under tests/ they are ("exchange::test_one"
  where files of other folders have a test of that name too, "test_one[case]" for one case).

One process imports the library and collects the tests. For each mutant it is forked, the changed
function takes the place of the original one (in every module that has imported it), and the tests
of the row run until one fails. So a mutant costs its tests and nothing else. A row that finds
nothing, or more than one place, or whose mutant survives, fails the run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import inspect
import itertools
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
PACKAGE = "forethought"
SOURCE = ROOT / "src" / PACKAGE
# No row is begun later. The tests of a row must not look at it: they would be left out, and pass.
END = float(os.environ.pop("CI_END", "inf"))
# Seconds; many times what the slowest row takes.
PATIENCE = 200


@dataclass(frozen=True)
class Mutant:
    """One piece of a function, what it becomes, and the tests (names, by spaces) that must fail."""

    name: str
    where: str
    piece: str
    changed: str
    tests: str


class UnboundError(Exception):
    """A row does not find what it names."""


MUTANTS = [
    Mutant("results: a person's rows as independent", "metrics.py::_wider",
           "math.sqrt(effect)", "1.0",
           "test_figures_of_persons_lie_in_their_intervals_as_often_as_said[True-1.0]"),
    Mutant("results: whose a held-out row is", "data/tables.py::load_table",
           "told(aside.person or aside.split_by, rows.held)", "None",
           "test_intervals_know_that_rows_of_a_person_are_alike[split_by]"),
    Mutant("run folder: a checkpoint of any keys", "Checkpointer.__init__",
           "blake3(held, key=keys.identity).hexdigest()", '""',
           "test_a_run_goes_on_with_its_own_keys_alone"),
    Mutant("run folder: a link is followed each time", "RunFolder.__init__",
           "real == Path(path).absolute()", "True",
           "test_a_link_that_is_turned_leads_a_run_into_no_other_folder"),
    Mutant("report: a statement of another run's plan", "Statement.load_of_run",
           "content_hash(held.read_bytes()) != own", "False",
           "test_a_statement_of_another_plan_is_noticed"),
    Mutant("quantiles: a total that noise moves up", "Quantiles.estimates",
           "float(counts.sum())", "float(np.cumsum(cumulative.rising(counts))[-1])",
           "test_noise_does_not_move_quantiles_upwards"),
    Mutant("quantiles: an interval that ends below the range", "Quantiles.estimates",
           "np.cumsum(cumulative.rising(counts)).clip(max=total)",
           "np.cumsum(cumulative.rising(counts))",
           "test_noise_does_not_move_quantiles_upwards"),
    Mutant("records: one buffer for all", "DatasetRecords._read",
           "_copied(self._dataset[index])", "self._dataset[index]",
           "test_a_data_set_may_refill_one_buffer"),
    Mutant("paid: records' plans on an account of persons", "store.py::Store._priced",
           "charge.unit != account.unit", "False",
           "test_an_account_of_persons_pays_for_persons_only"),
    Mutant("paid: a run in a book that was set back", "_require_run",
           "run is not None and held.run not in (None, run)", "False",
           "test_a_run_stops_where_its_book_was_set_back"),
    Mutant("paid: rounds that had begun are returned", "chain.py::settled",
           "rounds_of(held, rounds) < begun", "False",
           "test_rounds_that_had_begun_are_not_returned"),
    Mutant("statistics: words of a column by its type", "files.py::one_by_one",
           "{type(one) for one in held if one is not None} in ({str}, {float})", "True",
           "test_no_entry_changes_how_another_is_written"),
    Mutant("verify: a promise that the plan does not make", "verification.py::_plan",
           "told and one not in (*found, chosen) and (one.code not in tried)", "False",
           "test_a_statement_says_no_more_than_its_plan"),
    Mutant("verify: a run of its own with fewer rounds", "verification.py::_mechanism",
           "count == len(planned) or ...", "True",
           "test_a_run_of_its_own_accounts_for_all_of_its_plan"),
    Mutant("check: rows of persons among those held out", "training/run.py::opened_task",
           "fitting.as_rows(records, model)", "records",
           "test_rows_of_persons_are_no_held_out_rows"),
    Mutant("check: a loss on outputs that are equal", "contributions.py::_refuse_mixing",
           "_unequal(call(model, inputs), seed=1)", "call(model, inputs)",
           "test_a_loss_that_takes_the_mean_of_its_batch_away_is_refused"),
    Mutant("check: outputs that are equal to the targets", "contributions.py::_refuse_mixing",
           "seed=1", "seed=0",
           "test_a_loss_of_outputs_like_the_targets_may_not_look_at_the_batch"),
    Mutant("loop: a gradient that no round gave is lost", "own_loop.py::_require_none",
           "given is not None and ...", "False",
           "test_a_gradient_that_would_be_lost_is_refused"),
    Mutant("loop: a gradient that is added to the last round's is lost", "_Rounds.take",
           'getattr(given, "_version", 0) != version', "False",
           "test_a_gradient_that_is_added_to_the_last_rounds_is_refused"),
    Mutant("loop: groups that the optimizer does not get", "PrivateOptimizer.__setattr__",
           'name in ("param_groups", "state", "defaults")', "False",
           "test_what_the_optimizer_would_not_get_is_refused"),
    Mutant("centring: weights of a run that breaks off stay centred", "centred_weights",
           "bias -= ...", "pass",
           "test_a_run_that_breaks_off_leaves_weights_for_features_as_they_are"),
    Mutant("run folder: a phase that ended was not released", "UnfinishedRun.load",
           "current.finished", "False",
           "test_a_phase_that_ended_counts_while_the_run_does_not_know_it"),
    Mutant("trained before: a part of a model is another one", "folder.py::trained_before",
           "list(model.modules())", "[model]",
           "test_a_part_of_a_model_that_was_trained_before_is_named"),
    Mutant("trained before: the parts of a model are not remembered", "folder.py::_trained",
           "held | {model}", "{model}",
           "test_a_part_of_a_model_that_was_trained_before_is_named "
           "test_a_part_of_a_model_whose_training_was_broken_off_is_named"),
    Mutant("trained before: parts that stayed as they were count", "folder.py::_trained",
           "any(...)", "bool([*one.parameters(False)])",
           "test_a_part_of_a_model_that_was_trained_before_is_named"),
    Mutant("trained before: a run that did not end is forgotten", "folder.py::trained_before",
           "if any(...): ...", "pass",
           "test_a_model_whose_training_was_broken_off_is_named"),
    Mutant("members: a second process of one member takes part", "taking_part.py::_alone",
           "held.enter_context(locked(...))", "None",
           "test_a_member_takes_part_once_at_a_time_whatever_its_folder"),
    Mutant("split: equal rows go by their number, not by their place", "dataset.py::told_apart",
           "number[again].astype(np.uint64)", "order[again].astype(np.uint64)",
           "test_one_row_more_among_equal_ones_is_one_more_on_one_side"),
    Mutant("papers: what one run discloses, several disclose more often", "tradeoff.py::_composed",
           "1 - (1 - never) ** count", "never",
           "test_composed_once_is_the_same_curve"),
    Mutant("papers: a composed limit lies above the curve", "tradeoff.py::_composed",
           "count * cell if above else 0.0", "0.0",
           "test_composed_gaussians_are_one_gaussian"),
    Mutant("papers: Proposition 3(a) has its factor M", "convergence.py::proposition_3",
           "M * printed", "printed",
           "test_erratum_004_6_proposition_3a_lacks_a_factor_m"),
    Mutant("papers: Proposition 4(b) has the fourth power", "convergence.py::proposition_4",
           "root * goal.size", "root",
           "test_proposition_4_is_proposition_3_at_the_rounds_that_the_budget_buys"),
    Mutant("papers: Proposition 1 needs the conditions of its theorem",
           "Decentralised.proposition_1", "(enough, *proof)", "(enough,)",
           "test_the_printed_number_of_rounds_is_too_small_for_long_delays"),
    Mutant("papers: updates that pass meanwhile are counted up", "convergence.py::staleness",
           "math.ceil(span / each * (1 - 1e-12))", "math.floor(span / each)",
           "test_staleness_is_the_most_that_can_pass_meanwhile"),
    Mutant("additive: surfaces add to the longest record", "Curves.bound",
           "self.pair_size**2 * len(self.couples)", "0",
           "test_no_record_is_longer_than_the_bound_and_the_usual_size_is_the_mean"),
    Mutant("additive: curves add to the longest record", "Encoder.bound",
           "math.hypot(more, ...)", "more",
           "test_an_encoder_keeps_its_curves_and_without_any_stays_as_it_was"),
    Mutant("additive: many pairs want many records", "pairs_pay",
           "max(LEAST, EACH * count)", "LEAST",
           "test_pairs_are_taken_by_records_and_epsilon_alone"),
    Mutant("additive: holders of unlike sizes build one model", "_with_curves",
           "alone and pairs_pay(*known)", "pairs_pay(*known)",
           "test_pairs_follow_from_public_numbers_and_are_written_down"),
    Mutant("additive: the band knows every round's noise", "weight_noise",
           "longest * plan.rounds", "longest",
           "test_a_plan_puts_no_more_noise_on_a_weight_than_it_says"),
    Mutant("additive: a difference of two weights is noisier", "AdditiveModel._outputs",
           "math.sqrt(2)", "1.0",
           "test_the_band_is_the_deviation_that_noise_in_the_weights_draws"),
    Mutant("forecast: noise grows with the columns", "forecast.py::forecast",
           "math.sqrt(features + apart**2)", "math.sqrt(1 + apart**2)",
           "test_the_formula_is_what_a_simulation_of_its_model_gives"),
    Mutant("forecast: a class lies so far from the middle", "forecast.py::forecast",
           "float(ndtri(without)) / math.sqrt(2)", "float(ndtri(without))",
           "test_the_formula_is_what_a_simulation_of_its_model_gives"),
    Mutant("forecast: noise leaves so many pairs", "Forecast.expected",
           "math.hypot(1.0, self.noise)", "1.0 + self.noise",
           "test_the_formula_is_what_a_simulation_of_its_model_gives"),
    Mutant("page: the job's own request is planned", "planner.py::Settings.plan",
           "asked.rounds if self.epochs is None else None", "None",
           "test_it_begins_with_a_job_and_changes_its_numbers_only"),
    Mutant("plan: an optimizer that there is not is told before anything is released",
           "training/run.py::opened_task",
           "optimizers.descent_of(plan, trained_here(model))", "None",
           "test_a_plan_refuses_what_training_would"),
    Mutant("plan: a run folder that cannot be used is told", "jobs/train.py::propose",
           "require_folder(out)", "None",
           "test_a_plan_refuses_what_training_would"),
    Mutant("statistics: a count moves by one record", "kinds.py::Count.reach",
           "1.0", "0.5",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: a count that skips nothing is published", "kinds.py::Statistic.all_count",
           "not self.reads", "False", "test_a_count_of_what_is_published_says_so"),
    Mutant("statistics: a record counts in one prediction", "Accuracy.reach",
           "1.0", "0.5",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: a sum moves by the end that is farther from 0", "Sum.reach",
           "max(abs(low), abs(high))", "abs(high)",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: a replaced number moves a sum across the range", "Sum.reach",
           "max(high, 0.0) - min(low, 0.0)", "max(high, 0.0)",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: numbers beyond the range count as its ends in a sum", "Sum.tally",
           "np.clip(numbers, *self.range)", "numbers",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"
           " test_what_comes_out_without_noise_is_what_was_asked"),
    Mutant("statistics: the number of those that count moves too", "Mean.reach",
           "math.hypot(STEPS, STEPS // 2)", "float(STEPS)",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: a replaced number moves a mean by the whole range", "Mean.reach",
           "max(own, 2.0 * STEPS)", "own",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("norms: blocks beside a Gram matrix's diagonal count once", "gram_measures",
           "1 if to == at else 2", "1",
           "test_pieces_make_the_same_norms_and_sums_as_single_examples"),
    Mutant("persons: two that float32 cannot tell apart are one", "files.py::distinct",
           "entries.abs() >= 2.0**bits", "entries.abs() >= _EXACT",
           "test_numbers_that_are_no_longer_whole_in_the_file_name_no_person"),
    Mutant("tables: a stray quotation mark makes one record of two", "files.py::_shape",
           "odd[quotes[begin] == behind[odd]]", "odd[:0]",
           "test_any_text_is_refused_or_read_as_by_the_standard_library test_faults_are_named"),
    Mutant("tables: a file may change while it is read", "Table.pieces",
           "before != self._state", "False",
           "test_a_file_that_changes_while_it_is_read_is_refused"),
    Mutant("tables: the day of a time is London's", "Date._features",
           "entries.dt.date()", "entries.cast(pl.Date)",
           "test_the_day_of_a_time_is_that_of_its_time_zone"),
    Mutant("norms: squares that vanish in float32 make a patch's norm zero", "diagonal_norms",
           "exact.add_(width * cells * _TINY[kind])", "exact",
           "test_norms_are_upper_bounds_and_not_much_more"),
    Mutant("norms: a diagonal's squares have no room for rounding", "diagonal_norms",
           "(1 + 2 * gamma(roundings(width) + cells + 3, kind))", "(1 - 2.0**-24)",
           "test_norms_are_upper_bounds_and_not_much_more"),
    Mutant("norms: a Gram matrix's diagonal is changed where it is float64", "diagonal_norms",
           "squares.double() * (1 + 2 * gamma(roundings(width) + cells + 3, kind))",
           "squares.double().mul_(1 + 2 * gamma(roundings(width) + cells + 3, kind))",
           "test_norms_are_upper_bounds_and_not_much_more"),
    Mutant("statistics: a replaced record is in two counts of a histogram", "Histogram.reach",
           'math.sqrt(2) if adjacency == "replace-one" and self.size > 1 else 1.0', "1.0",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: a record moves C times the counts by a column", "cumulative.py::norm",
           "math.sqrt(square)", "math.sqrt(square) / 2",
           "test_no_record_moves_the_sum_further_than_the_norm"),
    Mutant("statistics: a replaced record moves two columns", "_OfSums.reach",
           'math.sqrt(2) if adjacency == "replace-one" else 1.0', "1.0",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: the longest axis decides", "_OfSums.reach",
           "max(self.axes)", "min(self.axes)",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("statistics: noise is in units of what a contribution moves", "released.py::_unit",
           "one.reach(adjacency)", "1.0",
           "test_the_noise_of_a_request_belongs_to_all_its_sums"),
    Mutant("statistics: several releases have less noise together", "released.py::_together",
           "_ROUNDED * together(sigmas)", "2 * together(sigmas)",
           "test_noise_multipliers_in_place_of_a_budget_say_what_they_cost"
           " test_several_statistics_are_one_mechanism_within_the_budget"),
    Mutant("statistics: a share of a budget has more noise", "released.py::request",
           "math.sqrt(total / one.weight)", "1.0",
           "test_several_statistics_are_one_mechanism_within_the_budget"),
    Mutant("statistics: the noise that was planned is drawn", "Request._noised",
           "self.noise_std(one)", "self.noise_std(one) / 2",
           "test_the_noise_is_the_discrete_gaussian_of_what_was_planned"),
    Mutant("statistics: noise is bound to the sums", "Request._noised",
           "torch.from_numpy(np.concatenate(tallies))", "torch.zeros(1, dtype=torch.float64)",
           "test_a_seeded_release_repeats_and_promises_nothing"),
    Mutant("statistics: a request covers its group", "released.py::request",
           "noise_multiplier(..., group=group, warn=False)",
           "noise_multiplier(..., group=1, warn=False)",
           "test_every_adjacency_and_group_is_within_the_budget"),
    Mutant("statistics: more rows of a person than are protected", "TableRows.of_persons",
           "kept(..., most)", "kept(..., most + 1)",
           "test_a_schema_of_persons_is_released_for_persons"),
    Mutant("statistics: rows of a schema's persons are one each", "_of_one_person",
           "return schema.records_per_person", "return 1",
           "test_a_schema_of_persons_is_released_for_persons"),
    Mutant("split: a row's side hangs on the others' type", "files.py::written",
           "whole.cast(pl.String).zip_with(whole == numbers, fractions)", "numbers.cast(pl.String)",
           "test_one_person_without_a_name_moves_no_other_of_an_archive"),
    Mutant("split: a row's side hangs on how a program writes", "files.py::written",
           "text.str.replace(found, spelling)", "text",
           "test_another_way_to_write_a_column_moves_no_row"),
    Mutant("split: a person on both sides", "_Reader.require_whole_persons",
           "both.n_unique() > both[person].n_unique()", "False",
           "test_a_person_with_rows_on_both_sides_is_refused"),
    Mutant("statistics: a missing entry is in no bin", "Histogram.tally",
           "[place.get(one, rest) for one in words if one]",
           "[place.get(one, rest) for one in words]",
           "test_a_word_is_in_one_bin_and_counts_as_itself"),
    Mutant("search: trials that share what was trained", "_trials", "trained & begun", "set()",
           "test_bad_arguments_are_refused_before_any_trial"),
    Mutant("search: a noised count with batch normalisation", "search.py::tune",
           "mixing_layers(probe)", "[]",
           "test_noised_counts_need_a_model_without_batch_normalisation"),
    Mutant("search: answers that are about others too", "_counting", "scoring == 'noised'",
           "False", "test_a_noised_score_counts_each_record_alone"),
    Mutant("views: a round that was not averaged hides nobody", "outsider_gain",
           "rounds not in (None, gossip.updates(worker))", "False",
           "test_who_stopped_before_its_round_was_averaged_is_hidden_by_nobody"),
    Mutant("verify: noise of others in a round that was not averaged", "account.py::_views_of",
           "outsider_gain(agreed, me, len(statement.mechanism))", "outsider_gain(agreed, me)",
           "test_noise_of_others_is_not_in_a_gossip_that_ended_early"),
    Mutant("views: the last average was not seen", "_Part.took",
           "outsider and reason == 'rounds'", "outsider",
           "test_only_who_has_the_last_average_is_hidden_from_outsiders"),
    Mutant("views: a client that missed a round", "gain", "set(made) != {federation.rounds}",
           "False", "test_the_overview_counts_no_noise_that_was_never_added"),
    Mutant("views: a clip norm that falls at one client", "_one_sum_a_round",
           "plan.clip.final is not None", "False",
           "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: steps that move apart", "_one_sum_a_round",
           "len(plans) == 1 or plans[0].schedule.unit == 'rounds'", "True",
           "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: shares of the noise that move", "gossip/statements.py::_moving",
           "moves and len(gossip.plans) > 1", "False",
           "test_an_outsider_of_sync_faces_everybody_s_noise_and_of_others_nobody_s"),
    Mutant("views: fewer rounds than planned, without a word", "statement.py::account",
           "len(mechanism) < len(planned)", "False",
           "test_fewer_rounds_than_planned_say_what_all_of_them_have"),
    Mutant("views: several holders' fewer rounds, without a word", "statement.py::shared",
           "done < most", "False",
           "test_statements_of_several_clients_say_what_all_planned_rounds_have"),
    Mutant("verify: any epsilon of all planned rounds", "_require_ended",
           "not _near(claimed, whole, (_ACCURACY + 1e-3) * whole)", "False",
           "test_another_epsilon_of_all_planned_rounds_is_refused"),
    Mutant("verify: other planned rounds", "_require_ended", "stated != counted", "False",
           "test_another_epsilon_of_all_planned_rounds_is_refused"),
    Mutant("sizes: paid at the planned rates", "Share.require",
           "agreed.sizes is not None and self.payer is not None", "False",
           "test_no_book_pays_for_rates_that_results_choose"),
    Mutant("views: noise of clients that left", "accountant_of",
           "gain(federation, client, known, made)", "gain(federation, client, known)",
           "test_the_overview_counts_no_noise_that_was_never_added"),
    Mutant("Gaussian: rounding that outweighs both factors", "gaussian_delta_bounds",
           "noise < 0.5", "math.isfinite(noise)",
           "test_bounds_on_delta_hold_where_rounding_is_all_that_is_left"),
    Mutant("views: a client that left hides in the others' noise",
           "federated/statements.py::accountant_of",
           "released not in (None, federation.updates(client))", "False",
           "test_noise_of_others_is_not_in_a_federation_that_a_client_left"),
    Mutant("views: rounds that were seen before leaving", "client_statement",
           "left and ...", "False and ...",
           "test_who_leaves_by_its_own_will_counts_all_its_rounds"),
    Mutant("series: a run of the whole after its parts", "PaidRun.paid",
           "self._used or self._taken", "self._used",
           "test_plans_of_a_series_are_paid_by_one_charge"),
    Mutant("preparation: one payment, two releases", "prepare", "paid.begun or ...", "False or ...",
           "test_a_payment_is_for_one_release_of_its_own_statistics"),
    Mutant("identity: a part is believed", "Ledger.recognise",
           "self.partition is not None and apart", "False",
           "test_a_run_of_a_part_reads_nobody_else"),
    Mutant("identity: the test file is not compared", "Job.recognise",
           "self.files(folder)", "[table.path]",
           "test_the_ledger_is_asked_about_the_records_of_the_test_file_too"),
    Mutant("verification: rounds of hidden ways are not compared", "verification.py::_mechanism",
           "planned.first(count) == s.mechanism", "True",
           "test_the_rounds_of_every_way_are_compared_with_the_plan"),
    Mutant("own loop: a parameter in another's place", "_Rounds.require_own",
           "present.get(name) is not p", "False",
           "test_a_parameter_in_anothers_place_is_refused"),
    Mutant("own loop: what acts in place is dropped", "_require_new",
           "name in _IN_PLACE", "False", "test_what_acts_in_place_on_a_batch_is_refused"),
    Mutant("identity: a fingerprint is under the book's key", "identity.py::fingerprint",
           "blake3(one, key=own)", "blake3(one)",
           "test_keys_and_counts_are_parts_of_the_name"),
    Mutant("identity: the number of records is in the name", "identity.py::fingerprint",
           'count.to_bytes(16, "little", signed=True) + total.tobytes()', "total.tobytes()",
           "test_keys_and_counts_are_parts_of_the_name"),
    Mutant("own loop: a mean that divides by weights is taken apart", "is_mean",
           'function in _WEIGHTED or kwargs.get("weight") is None', "True",
           "test_a_loss_that_a_round_cannot_compute_is_refused_and_nothing_is_released"),
    Mutant("own loop: a mean is the sum of an example's numbers", "own_mean",
           "values.flatten(1).mean(1)", "values.flatten(1).sum(1)",
           "test_torchs_mean_of_a_loss_is_the_loss_of_each_example"),
    Mutant("blocks: a probe that finds nothing", "_alike",
           "boundary.agreed(model, same, True)", "True",
           "test_another_last_bit_in_one_place_is_found"),
    Mutant("blocks: sizes that follow from the batch", "Blocks.fit",
           "next((size for size in self.sizes if size >= count))", "count",
           "test_blocks_cover_a_batch_once"),
    Mutant("one use: more contributions than the round has", "clip_and_sum_once",
           "longest <= whole", "True",
           "test_more_contributions_than_the_round_has_are_refused"),
    Mutant("large products: a bias read past its strides", "fast_linear",
           "bias.contiguous()", "bias",
           "test_a_large_linear_map_reads_its_bias_and_nothing_behind_it"),
    Mutant("large products: a bias read past its end", "fast_linear",
           "bias.shape == weight.shape[:1]", "True",
           "test_a_large_linear_map_reads_its_bias_and_nothing_behind_it"),
    Mutant("blocks: what was written into a sparse buffer stays", "_put_back",
           "value.resize_as_sparse_(kept).copy_(kept)", "pass",
           "test_sparse_buffers_are_compared_and_put_back"),
    Mutant("one use: a long sum in float32", "_summed", "clipped[part].to(dtype)",
           "clipped[part].float()",
           "test_a_short_sum_that_is_too_long_for_float32_is_formed_in_float64"),
    Mutant("one use: a long sum's roundings in float32", "_scaled", "gamma(rows, dtype)",
           "gamma(rows, torch.float64)",
           "test_a_short_sum_that_is_too_long_for_float32_is_formed_in_float64"),
    Mutant("blocks: what fills up counts in a chain", "_scaled", "factors[count:] = 0.0", "pass",
           "test_what_fills_up_adds_nothing[chain]"),
    Mutant("blocks: what fills up counts", "weighed",
           "missing = scaling.shape[1] - real", "missing = 0",
           "test_what_fills_up_adds_nothing[lanes]"),
    Mutant("blocks: one example sends all another way", "_Attempt._note",
           "if self._tried(): ...", "pass",
           "test_one_example_that_sends_all_another_way_does_not_move_them"),
    Mutant("blocks: a slow model's loss is not compared with the batch's",
           "_Attempt._one_at_a_time", "if answers: ...", "pass",
           "test_a_loss_of_the_batch_is_refused_however_the_examples_go"),
    Mutant("blocks: what a first pass learns is taken for other bits", "_alike",
           "if turn == 0: ...", "pass", "test_what_a_first_pass_learns_changes_no_block"),
    Mutant("blocks: a probe takes a refusal for odd values", "_alike",
           "kind is None and isinstance(error, boundary.RefusedError)", "False",
           "test_a_loss_of_the_batch_is_refused_however_the_examples_go"),
    Mutant("local updates: one that is not clipped", "_added",
           "addition.clipped({'': Dense(whole)}, {'': whole[0]})",
           "clip_and_sum({'': Dense(whole)}, {'': whole[0]}, 9.0 * addition.round.clip_norm, "
           "addition.how.rule, addition.batch.round_size)",
           "test_one_record_moves_a_rounds_sum_by_two_norms_at_most"),
    Mutant("local updates: one that is not clipped by layer", "_added",
           "addition.clipped(terms, kinds)",
           "clip_and_sum(terms, kinds, 9.0 * addition.round.clip_norm, addition.how.rule, "
           "addition.batch.round_size)",
           "test_one_record_moves_a_rounds_sum_by_two_norms_at_most"),
    Mutant("local updates: weights that a group leaves behind", "Bare._weights_restored",
           "parameter.data.copy_(self.start[name])", "pass",
           "test_one_record_moves_a_rounds_sum_by_two_norms_at_most"),
    Mutant("local updates: weights of the group before", "OneByOne._descend", "weight.copy_(value)",
           "pass", "test_updates_are_those_of_torch_optim_on_a_copy"),
    Mutant("local updates: what a group remembers", "Enclosure.run", "self._surroundings.restore()",
           "pass", "test_no_state_outlives_a_group"),
    Mutant("local updates: batches in the order they were drawn", "group_updates",
           "np.sort(batch.indices[batch.member_of == g])", "batch.indices[batch.member_of == g]",
           "test_the_order_of_a_batch_says_nothing"),
    Mutant("copies: each a contribution", "example_gradients", "copies=copies", "copies=1",
           "test_a_contribution_is_the_clipped_mean_over_copies"),
    Mutant("copies: by the number of another record", "uniform", "draws[:, None]",
           "draws[::-1, None]", "test_a_contribution_is_the_clipped_mean_over_copies"),
    Mutant("copies: another record's pixels", "_moved", "which[:, None, None]",
           "which.flip(0)[:, None, None]", "test_a_contribution_is_the_clipped_mean_over_copies"),
    Mutant("copies: see each other", "Subject.gradients",
           "batches.LaneBatch(*rows, self.each, self.mixing, max(real, 1), blocks)",
           "batches.LaneBatch(*rows, self.each, True, max(real, 1), blocks)",
           "test_copies_may_not_see_each_other"),
    Mutant("copies: of a share by the whole batch's numbers", "DealtBatch.some",
           "self.draws[places]", "self.draws", "test_pieces_processes_and_parts_change_nothing"),
    Mutant("adam-bc: the noise stays in", "AdamBC.step", "state['square'] - state['noise']",
           "state['square']", "test_steps_are_those_of_the_paper"),
    Mutant("adam-bc: another round's noise", "Descent.step", "whole ** 2", "whole",
           "test_under_nothing_but_noise_the_correction_leaves_nothing"),
    Mutant("filters: noise that is left", "Kalman.filtered", "gain ** 2", "gain",
           "test_the_noise_that_is_left_has_the_variance_that_is_said"),
    Mutant("filters: weights that stay ahead", "Descent.ahead", "parameter.copy_(here[name])",
           "pass", "test_gradients_are_taken_ahead_of_the_weights_and_these_stay"),
    Mutant("preparation: histograms longer than declared", "Vectors.of",
           "(bins == at).double().mean", "(bins == at).double().sum",
           "test_no_record_has_a_longer_vector_than_declared"),
    Mutant("preparation: norms longer than declared", "Vectors.of",
           "left.log().clamp(-limit, limit)", "left.log()",
           "test_no_record_has_a_longer_vector_than_declared"),
    Mutant("preparation: rows of ones are taken for shorter", "Ones.bounds",
           "math.sqrt(self.breadth)", "1.0",
           "test_a_record_is_in_one_half_one_quarter_and_so_on_of_each_number"),
    Mutant("preparation: levels of ranges that are not paid for", "Preparation._sizes",
           "len(self.steps) * numbers", "numbers",
           "test_no_record_has_a_longer_vector_than_declared"),
    Mutant("preparation: less than all of it", "require_prepared", "not prepared.whole", "False",
           "test_ranges_alone_are_not_all_that_a_plan_pays_for"),
    Mutant("preparation: norms with the noise of the means", "_rounds",
           "asked.sigma(statistic)", "asked.noise_multiplier or 0.0",
           "test_the_norms_noise_is_twice_the_means_and_both_cost_what_is_planned"),
    Mutant("preparation: norms at no cost", "Preparation.parts", "self.statistics",
           "self.statistics[:1]",
           "test_the_norms_noise_is_twice_the_means_and_both_cost_what_is_planned"),
    Mutant("preparation: in no transcript", "with_preparation",
           "whole.extend(prepared.transcript)", "pass", "test_a_run_states_its_preparation"),
    Mutant("radius of a group's half lines", "_two_sided", "2.0", "1.0",
           "test_half_lines_hold_where_told_hits_are_too_far_apart"),
    Mutant("radius of group clipping and of sampling without replacement", "Rounds.per_hit",
           "if self.clipping == 'group' or ...: ...",
           "if self.clipping == 'group' or ...: return 1.0",
           "test_sensitivity_follows_from_the_mechanism"),
    Mutant("radius of the Gaussian that caps every cell", "unsampled_distance",
           "rounds.reach(mechanism.adjacency, most)", "rounds.reach(mechanism.adjacency, 1)",
           "test_the_cap_is_the_gaussian_at_the_groups_whole_distance"),
    Mutant("kinds: a batch holds a record once", "unsampled_distance",
           "rounds.sampling.most(group)", "group",
           "test_what_follows_from_a_wrong_fact_is_below_the_truth"),
    Mutant("kinds: a record moves a sum once", "Rounds.sensitivity", "self.sampling.most(1)", "1",
           "test_known_batches_count_every_draw"),
    Mutant("kinds: known batches hold a record once", "_all_turns",
           "part.noise_multiplier / times * (1 - 1e-15)", "part.noise_multiplier",
           "test_known_batches_count_every_draw"),
    Mutant("kinds: nobody's place is taken", "Rounds.per_hit",
           "self.clipping == 'group' or self.sampling.exchanges", "self.clipping == 'group'",
           "test_no_cell_certifies_less_than_the_truth"),
    Mutant("groups: those of one round for a whole epoch", "Rounds.reach",
           "min(self.sampling.rounds_per_epoch, self.count)", "1",
           "test_records_of_a_batch_move_at_most_its_groups"),
    Mutant("groups: records that are left over", "Rounds.reach",
           "full * self.groups ** 2 + rest ** 2", "full * self.groups ** 2",
           "test_records_of_a_batch_move_at_most_its_groups"),
    Mutant("blocks: groups are not tried", "_of_groups",
           "own.tried(data, blocks)", "blocks or batches.MULTIPLES",
           "test_how_many_groups_there_are_changes_no_bit_of_one"),
    Mutant("groups: any number of them", "Privacy.__post_init__",
           "part.groups not in (None, count)", "False",
           "test_the_mechanism_and_the_contribution_speak_of_the_same_groups"),
    Mutant("groups: of all parts, with known batches", "_all_turns",
           "part.groups * part.sampling.rounds_per_epoch", "part.groups",
           "test_records_of_several_parts_and_epochs_are_in_several_groups"),
    Mutant("groups: of all parts, with correlated noise", "uncorrelated",
           "rounds.groups * separation", "rounds.groups",
           "test_records_of_several_parts_are_in_several_groups"),
    Mutant("selection: that there may be no trial", "PoissonTrials._best_of",
           "float(np.logaddexp(0.0, log_rise))", "float(log_rise)",
           "test_a_rare_single_trial_is_not_free"),
    Mutant("printing: bounds to the nearest digit", "_outward",
           "(number - exact * (100 if kind == '%' else 1)) * side >= 0",
           "True", "test_no_bound_is_printed_on_its_wrong_side"),
    Mutant("intervals: wide without a word", "enclose",
           "why_wide(mechanism, group, found, accuracy)", "None",
           "test_where_the_ends_are_apart_it_says_why"),
    Mutant("printing: what no double is near", "_outward",
           "math.isfinite(float(rounded)) and holds(text)", "True",
           "test_no_double_is_printed_on_its_wrong_side"),
    Mutant("known hits: all rounds as the first", "KnownHits.of_rounds",
           "math.fsum(map(sampling.turn, range(rest)))", "rest * sampling.turn(0)",
           "test_turns_of_the_started_epoch_add_up"),
    Mutant("rényi: a record that is drawn several times", "renyi.py::_release", "hits.trials != 1",
           "False", "test_a_record_drawn_several_times_has_no_curve_of_one"),
    Mutant("theorems: the first is stated, not the least", "_least",
           "here.upper < found.upper or found.lower == math.inf", "found.lower == math.inf",
           "test_no_theorem_proves_less_than_is_stated"),
    Mutant("masks: weights of the roster count", "_noise_in_the_mean",
           "federation.secure is not None", "False",
           "test_the_roster_s_weights_change_nothing_of_a_masked_sum"),
    Mutant("filter: correlated rounds one by one", "Filter.affordable",
           "isinstance(rounds, Correlated)", "False",
           "test_correlated_rounds_cost_what_all_of_them_together_do"),
    Mutant("selection: a trial's own share", "best_of_epsilon", "delta / trials.mean", "delta",
           "test_no_pair_of_laws_is_worse"),
    Mutant("selection: losses near the top", "_growth", "np.maximum(near, far)", "far",
           "test_no_pair_of_laws_is_worse"),
    Mutant("selection: the shape of the number", "_growth", "trials.shape + 1", "1.0",
           "test_no_pair_of_laws_is_worse"),
    Mutant("chains: what is lost on the way", "_Proven.then",
           "outer + other.between(np.maximum(rest, 0.0))", "other.between(np.maximum(rest, 0.0))",
           "test_groups_and_exchanged_records_go_change_by_change"),
    Mutant("chains: an odd number of changes", "_Proven.times", "half.then(half).then(self)",
           "half.then(half)", "test_groups_and_exchanged_records_go_change_by_change"),
    Mutant("chains: an exchange is one change", "Chained.__init__", "each[0].then(each[-1])",
           "each[0]", "test_groups_and_exchanged_records_go_change_by_change"),
    Mutant("chains: equal levels' losses on the way", "log_growth",
           "(steps - 1) * level + math.log(math.expm1(-steps * level) / math.expm1(-level))",
           "math.log(math.expm1(-steps * level) / math.expm1(-level))",
           "test_groups_and_exchanged_records_go_change_by_change"),
    Mutant("theorems: two kinds of rounds by the same one only", "alternatives",
           "[{pair} for pair in disclosed]", "[]", "test_no_theorem_proves_less_than_is_stated"),
    Mutant("chains: one direction", "Chained.bound", "self._ways", "self._ways[1:]",
           "test_groups_and_exchanged_records_go_change_by_change"),
    Mutant("truth: parts that are tried for nothing", "_by_parts",
           "math.log(places / chance) * (1 + _WIDTH)", "0.0",
           "test_parts_are_tried_out_at_the_price_of_their_number"),
    Mutant("truth: records are always together", "_by_parts",
           "in_one_part(group, many, places) * _DOWN", "1.0",
           "test_of_parts_that_nobody_is_told_no_more_is_claimed_than_of_rounds"),
    Mutant("truth: an epoch ends with a whole batch", "attack_bounds.py::_summed",
           "part.sampling.examples % part.sampling.batch or part.sampling.batch",
           "part.sampling.batch", "test_a_record_alone_in_the_last_batch_has_nobody_opposite"),
    Mutant("truth: two places counted twice", "in_one_part", "one**2", "0.0",
           "test_records_are_together_at_least_as_often_as_claimed"),
    Mutant("disclosed count: the place that another record takes", "disclosed_ratios",
           "(2 * r, r) if disclosed.blanked else ...", "(r, 0.0)",
           "test_laws_enclose_both_profiles"),
    Mutant("disclosed count: only one side", "disclosed_ratios", "((ahead, 1.0), (behind, -1.0))",
           "((ahead, 1.0),)", "test_laws_enclose_both_profiles"),
    Mutant("disclosed count: radius of what is blanked", "replacing",
           "shift / 2 if blanked else shift", "shift / 2", "test_no_hits_missed_is_a_gaussian"),
    Mutant("disclosed count: cells that are not spread", "_cells",
           "np.expm1(rise) / np.expm1(gap)", "0.0 * rise", "test_laws_enclose_both_profiles"),
    Mutant("cap: replaced records stay in place", "unsampled_distance",
           "mechanism.adjacency != 'add-or-remove'", "True",
           "test_the_cap_is_the_gaussian_at_the_groups_whole_distance"),
    Mutant("epochs: begun ones with known batches", "_all_turns",
           "replace(part, count=part.releases * part.sampling.rounds_per_epoch)", "part",
           "test_a_begun_epoch_grows_to_a_whole_one"),
    Mutant("epochs: a cut inside one", "Mechanism.after",
           "part.count > taken and taken % part.sampling.rounds_per_epoch", "False",
           "test_no_mechanism_begins_inside_an_epoch"),
    Mutant("direction: the reverse one is never looked at", "searched",
           "not all((pair.two_sided for pair in counts))", "False",
           "test_the_reverse_direction_counts_where_it_is_the_worse_one"),
    Mutant("direction: the reverse one is skipped too easily", "searched",
           "asked.epsilon if delta is None else searches[0].lower", "1000000000.0",
           "test_the_reverse_direction_is_looked_at_wherever_it_could_matter"),
    Mutant("direction: seen in a mirror the wrong way round", "IntegratedPairs.__init__",
           "(left, right) if swapped and (not first.two_sided) else (right, left)", "(right, left)",
           "test_the_reverse_direction_counts_where_it_is_the_worse_one"),
    Mutant("direction: the reverse one called the lesser too easily", "Composition.chernoff",
           "moment + log_peak(tilt) - tilt * at + self.shift",
           "moment + log_peak(tilt) - tilt * at - 30.0", "test_chernoffs_bound_lies_above"),
    Mutant("direction: the reverse one called the lesser by a bound from below",
           "Composition.lesser", "self.charged(line).upper(epsilon)",
           "self.charged(line).lower(epsilon)",
           "test_a_direction_is_the_lesser_one_only_where_it_is"),
    Mutant("Gaussian: a lower end from digits that cancelled", "_delta",
           "(shift <= _FAR) & (noise < 0.5)", "size > 0",
           "test_bounds_on_delta_are_an_interval_however_large_or_small_all_is"),
    Mutant("charge: nodes that were taken for less", "Demand.covers",
           "self.frequency >= other.frequency", "True",
           "test_nodes_that_are_kept_serve_only_what_they_were_taken_for"),
    Mutant("charge: smoothing from above", "Integral.__init__",
           "common * np.exp(tau * tau * s / 2)", "common", "test_fine_lines_are_sharp"),
    Mutant("charge: smoothing from below", "Integral.__init__",
           "common * np.exp(-margin * s) * (1 - s * _expm1(tau * tau * (s + 0.5) - margin))",
           "common",
           "test_fine_lines_are_sharp"),
    Mutant("charge: a transform that is off", "Integral.__init__", "grown + size * (EPS * units)",
           "size * (EPS * units)", "test_rough_lines_still_enclose"),
    Mutant("charge: the end of the line, above", "Integral.__init__",
           "float((np.abs(above) * wrong).sum()) + tail * peak",
           "float((np.abs(above) * wrong).sum())", "test_rough_lines_still_enclose"),
    Mutant("charge: the end of the line, below", "Integral.__init__",
           "float((np.abs(below) * wrong).sum()) + tail_below * peak",
           "float((np.abs(below) * wrong).sum())", "test_rough_lines_still_enclose"),
    Mutant("charge: what wraps around from the left", "Integral.bound",
           "exp_or_inf(left - math.log(-math.expm1(left)) - scale)", "0.0",
           "test_rough_lines_still_enclose"),
    Mutant("charge: what wraps around from the right", "Integral.bound",
           "exp_or_inf(right - scale)", "0.0", "test_rough_lines_still_enclose"),
    Mutant("charge: quadrature", "IntegratedPairs.along", "2 * float(np.exp(errors).sum())", "0.0",
           "test_a_coarse_rule_errs_by_less_than_it_says_and_by_more_than_rounding"),
    Mutant("charge: quadrature of the moment beyond", "_bounds",
           "size[:, 1:] + larger + cases.frequency * turn + (_RATE + np.log(halves))",
           "size[:, 1:] - 40",
           "test_a_coarse_rule_errs_by_less_than_it_says_and_by_more_than_rounding"),
    Mutant("charge: rounding of the transform", "Nodes.rounding",
           "np.asarray(EPS * (6 * turned + (frequency + abs(self.tilt)) * slips + still))",
           "np.zeros_like(turned)", "test_the_line_is_within_its_doubt_of_many_digits"),
    Mutant("charge: the posterior's spread", "side_of", "largest ** 2 / 4", "largest ** 2 / 40",
           "test_the_posterior_of_a_lattice_mixture_is_no_wider_than_assumed"),
    Mutant("charge: weights in doubt", "Composition.__init__",
           "math.fsum((2 * n * p.doubt for p, n in parts.items()))", "0.0",
           "test_doubtful_weights_are_covered"),
    Mutant("charge: rounding of weights", "_from_ratios",
           "EPS * (6.0 * max(above.size, below.size) + weights.size + 8)", "0.0",
           "test_binomial_weights_are_as_exact_as_stated"),
    Mutant("charge: weights left out", "_from_ratios", "1e-270 if cut else 0.0", "0.0",
           "test_huge_groups_are_cut_and_say_so"),
    Mutant("mu: the end of its bracket that may have more delta", "gaussian_mu",
           "reached(meets, 0.0, 1.0, steps=1200)[0]", "reached(meets, 0.0, 1.0)[1]",
           "test_mu_is_never_above_a_tiny_one"),
    Mutant("charge: mass of no component", "Composition.charged", "self.lost + self.cut_off",
           "self.cut_off", "test_lost_mass_is_charged_once_a_round"),
    Mutant("charge: losses cut off", "Composition.charged", "self.lost + self.cut_off", "self.lost",
           "test_cut_off_losses_count_as_disclosed"),
    Mutant("charge: what the disclosed losses cost", "Charged.lower",
           "exp_or_inf(epsilon + shift) * (undisclosed + sys.float_info.min)", "0.0",
           "test_cut_off_losses_count_as_disclosed"),
    Mutant("charge: a power of e that is no number", "Charged.lower",
           "exp_or_inf(epsilon + shift) * (undisclosed + sys.float_info.min)",
           "math.exp(min(epsilon + shift, 700.0)) * undisclosed",
           "test_delta_undoes_an_epsilon_whose_power_of_e_is_no_number"),
    Mutant("charge: a power of e that is no number, in a chain", "Chained.bound",
           "exp_or_inf if end else ...", "lambda exponent: math.exp(min(exponent, 700.0))",
           "test_a_chain_at_a_level_whose_power_of_e_is_no_number_proves_no_less_than_it_must"),
    Mutant("charge: how fast the posterior's mean grows", "_posterior",
           "np.minimum(a * reach, 700.0)", "np.minimum(a * reach, 50.0)",
           "test_a_panel_near_a_sharp_bend_errs_by_less_than_it_says"),
    Mutant("charge: what the mean lacks, rounded up before it grows", "_posterior",
           "np.maximum(a - mean, 4 * EPS * a)", "a - mean",
           "test_a_panel_near_a_sharp_bend_errs_by_less_than_it_says"),
    Mutant("first round: the records of a batch are not independent", "_by_itself",
           "WithoutReplacement(sampling.batch, sampling.examples)",
           "Poisson(sampling.batch / sampling.examples)",
           "test_the_first_round_of_an_epoch_is_a_round_of_a_simpler_sampling"),
    Mutant("first round: any part of an epoch counts as one", "_by_itself",
           "rounds.count == 1 < sampling.rounds_per_epoch",
           "rounds.count < sampling.rounds_per_epoch",
           "test_the_first_round_of_an_epoch_is_a_round_of_a_simpler_sampling"),
    Mutant("charge: Q's mass of no component", "Charged.lower",
           "lower > -math.inf and lost_below > 0", "False",
           "test_lost_mass_is_charged_once_a_round"),
    Mutant("charge: mass cut off the transform", "IntegratedPairs.along", "gap[:, :count] - lost",
           "gap[:, :count]", "test_what_is_cut_off_is_taken_from_the_measure"),
    Mutant("curve: losses below 0 of the same direction", "Curve.delta", "self._behind",
           "self._ahead", "test_curves_hold_at_every_real_epsilon"),
    Mutant("curve: an upper bound carried to the left", "Profile.bound",
           "int(np.searchsorted(self._knots, epsilon, side='right')) - 1",
           "int(np.searchsorted(self._knots, epsilon, side='right'))",
           "test_curves_hold_at_every_real_epsilon"),
    Mutant("curve: a lower bound carried to the right", "Profile.bound",
           "int(np.searchsorted(self._knots, epsilon, side='left'))",
           "int(np.searchsorted(self._knots, epsilon, side='left')) - 1",
           "test_curves_hold_at_every_real_epsilon"),
    Mutant("curve: the other direction left out", "_profiles", "swapped=s",
           "swapped=False", "test_curves_hold_at_every_real_epsilon"),
    Mutant("charge: what a transform regains between frequencies", "IntegratedPairs.along",
           "slack[rows, None]", "0.0", "test_a_line_with_slack_holds_in_between"),
    Mutant("charge: how fast a transform changes", "IntegratedPairs.swing",
           "np.sqrt((moment + error[0]) * square) * (1 + 1e-09)",
           "0.3 * np.sqrt((moment + error[0]) * square)",
           "test_no_transform_changes_faster_than_its_swing"),
    Mutant("charge: the variance of a shared base", "growth", "2 * variance", "2",
           "test_a_density_above_the_line_is_larger_by_what_is_said"),
    Mutant("filter: an order that may spend too much", "limit_of",
           "renyi.binary_moment(order, epsilon, delta) / (order - 1) / renyi.LIFT",
           "1.02 * renyi.binary_moment(order, epsilon, delta) / (order - 1)",
           "test_an_order_may_spend_what_still_converts_to_the_budget"),
    Mutant("ledger: leaps are not part of the budget", "Clock.deltas",
           "self.leapt(time) + _left_out(self, time)", "_left_out(self, time)",
           "test_profile_of_the_clock_is_that_of_counted_steps"),
    Mutant("ledger: sudden steps come as often in any time", "Clock.readings",
           "time / at", "1 / at", "test_profile_of_the_clock_is_that_of_counted_steps"),
    Mutant("ledger: rounding counts for the clock", "Clock.below",
           "readings / _ROUNDING", "readings * 1.01",
           "test_profile_of_the_clock_is_that_of_counted_steps"),
    Mutant("ledger: the clock's tangents", "Clock.below", "-slopes", "-2 * slopes",
           "test_profile_of_the_clock_is_that_of_counted_steps"),
    Mutant("ledger: a stored clock that exceeds the budget", "ClockRule.__post_init__",
           "self.clock.above(1.0, self.budget.epsilon) <= self.budget.delta",
           "self.clock.above(1.0, self.budget.epsilon) <= 1.1 * self.budget.delta",
           "test_clock_that_does_not_keep_the_budget_is_refused"),
    Mutant("ledger: one direction of a profile only", "least_time",
           "np.max([end.deltas(levels) for end in ends], axis=0)",
           "np.min([end.deltas(levels) for end in ends], axis=0)",
           "test_clock_dominates_a_round_both_ways_and_hardly_more"),
    Mutant("ledger: a group is charged as one record", "least_time",
           "exact.privacy_loss(mechanism, group)", "exact.privacy_loss(mechanism)",
           "test_group_is_covered_in_the_clock"),
    Mutant("ledger: a group moves unsampled noise as one record", "_even",
           "unsampled_distance(mechanism, group)", "unsampled_distance(mechanism)",
           "test_group_of_two_moves_a_gaussian_release_twice_as_far"),
    Mutant("ledger: profiles are compared at knots only", "above_chords",
           "bool(np.all(lowest + left * meet >= 0))", "True",
           "test_even_course_between_knots_is_above_the_chords"),
    Mutant("ledger: a knot where the clock is below", "above_chords",
           "np.all(above >= 0)", "np.any(above >= 0)",
           "test_even_course_between_knots_is_above_the_chords"),
    Mutant("ledger: a block that was begun returns", "ClockRule._costs",
           "start < rounds", "start < rounds - 1",
           "test_run_that_stops_returns_only_blocks_that_were_not_begun"),
    Mutant("ledger: any part of a scheme counts", "TotalRule.total",
           "tuple(map(max, before, sums))", "tuple(sums)",
           "test_worst_part_of_each_scheme_counts"),
    Mutant("ledger: more than the whole clock", "TotalRule.fits",
           "spent <= WHOLE", "spent <= 2 * WHOLE", "test_no_adaptive_adversary_exceeds_the_budget"),
    Mutant("ledger: partitions of records that may move", "TotalRule.costs",
           'self.adjacency == "replace-one"', "False",
           "test_what_no_theorem_covers_is_refused"),
    Mutant("ledger: costs are rounded down", "_units",
           "math.ceil(share * WHOLE)", "math.floor(share * WHOLE)",
           "test_hardly_anything_is_more_than_nothing"),
    Mutant("ledger: half of what a Gaussian release costs", "GaussianRule._costs",
           "distance**2", "distance**2 / 2",
           "test_total_is_never_below_the_exact_composition"),
    Mutant("ledger: a search of the cheapest candidate", "_best_time",
           "max(least_time(clock, mechanism, 1) for mechanism in mechanisms)",
           "min(least_time(clock, mechanism, 1) for mechanism in mechanisms)",
           "test_numbers_of_trials_count_as_no_fewer_than_they_are"),
    Mutant("ledger: all trials cost what one does", "_best_time", "number * each", "each",
           "test_a_search_is_dominated_by_what_it_costs"),
    Mutant("ledger: held-out records pay nothing", "ClockRule._searched",
           "selection.of_a_record", "selection.of_a_record[:1]",
           "test_a_held_out_record_pays_for_the_count_that_it_is_in"),
    Mutant("ledger: a search at one trial's divergence", "Selection.divergence",
           "best.values[...]", "_worst(self.of_a_record[0], orders).values[0]",
           "test_a_search_has_at_most_the_divergence_that_it_is_charged"),
    Mutant("ledger: a stopped search costs nothing", "tune", "paid.ahead(1)", "paid.ahead(0)",
           "test_a_search_that_stopped_is_charged_from_its_first_trial_on"),
    Mutant("ledger: another search's statement", "Selection.is_of",
           "details[name] == value", "True",
           "test_a_statement_of_another_search_is_not_in_the_book"),
    Mutant("ledger: accounts that share persons have no mark", "PaidRun.ahead",
           "self._others", "()",
           "test_accounts_that_share_persons_all_pay"),
    Mutant("ledger: rounds released again are paid by one account", "PaidRun.again",
           "(*self._others, self.number)", "(self.number,)",
           "test_rounds_released_again_are_paid_by_all"),
    Mutant("ledger: the plans of a series in any order", "PaidRun.part",
           "self.mechanism.between(before, end) != mechanism", "False",
           "test_plans_of_a_series_are_paid_by_one_charge"),
    Mutant("ledger: a part of a series marks the first one's rounds", "SeriesPart.ahead",
           "self._first + rounds", "rounds", "test_plans_of_a_series_are_paid_by_one_charge"),
    Mutant("ledger: persons of a partition are taken out", "Store.forget",
           "PERSONS.c.scheme == ''", "PERSONS.c.scheme != 'no'",
           "test_an_owner_takes_out_records_that_are_nobodys"),
    Mutant("ledger: any overlap is a coincidence", "Ledger.recognise",
           "persons is None and ...", "True", "test_a_renamed_copy_and_a_superset_are_noticed"),
    Mutant("ledger: a loop's rounds are not in the book", "_Rounds.__init__",
           "marked(paid, self._private.note)", "self._private.note",
           "test_a_loop_of_ones_own_is_paid_and_settles_with_its_rounds"),
    Mutant("ledger: a phase that was not paid for stays", "PhaseState.withdraw",
           "self.phases.pop()", "pass", "test_a_phase_that_does_not_fit_ends_the_run"),
    Mutant("verify: more noise than planned, released again", "_no_more_noise",
           "first.noise_multiplier <= wanted.noise_multiplier * (1 + 1e-12)", "True",
           "test_rounds_released_again_have_the_plans_noise_or_less"),
    Mutant("ledger: a Rényi order may spend too much", "RenyiRule.limit",
           "limit_of(self.order, self.budget.epsilon, self.budget.delta)",
           "1.02 * limit_of(self.order, self.budget.epsilon, self.budget.delta)",
           "test_charges_fit_until_they_do_not"),
    Mutant("ledger: a group is charged as one record by its curve", "RenyiRule._costs",
           "group == 1", "True", "test_more_never_costs_less"),
    Mutant("filter: half of what a round costs", "GaussianFilter.costs",
           "2 * renyi.zcdp(mechanism) * _ROUNDING", "renyi.zcdp(mechanism)",
           "test_fixed_rounds_get_all_that_the_exact_accountant_allows"),
    Mutant("filter: charged although it does not fit", "Filter.spend",
           "not self._fits(sums)", "False",
           "test_what_does_not_fit_is_refused_before_it_is_charged"),
    Mutant("filter: charged for other rounds than the stated", "filter_interval",
           "not np.allclose(ledger._sums, spent, rtol=_SAME, atol=0)", "False",
           "test_a_statement_recomputes_what_was_charged"),
    Mutant("crossing: the side on which the bound does not hold", "Search._crossing",
           "high if upper else low", "low if upper else high", "test_rows_that_were_wrong_or_wide"),
    Mutant("crossing: clipped instead of reported", "_at_once",
           "found.lower > found.upper", "False", "test_a_crossing_is_an_error_with_its_inputs"),
    Mutant("strong adversary: distance without replacement", "KnownHits.of_rounds",
           "2.0 if exchanged or adjacency == 'replace-one' else 1.0", "1.0",
           "test_the_strong_adversary_moves_by_two_where_another_record_takes_the_place"),
    Mutant("statement: an ε that is too small", "_epsilon",
           "claimed.upper < now.upper and claimed.upper < _finest(case)", "False",
           "test_an_older_version_may_be_looser_but_never_wrong"),
    Mutant("statement: attacks that promise too much", "_attack",
           "below or (case.of_this_version and stated > true + distance)",
           "case.of_this_version and stated > true + distance",
           "test_what_the_issue_lists_is_caught"),
    Mutant("statement: a row of releases that nobody accounts", "difference",
           "row.name not in names", "False",
           "test_every_row_is_accounted"),
    Mutant("statement: a score of any noise", "difference",
           "row.noise_multiplier != score_noise", "False",
           "test_a_score_belongs_to_no_round"),
    Mutant("statement: rows of another transcript", "verification.py::_releases",
           "case.transcript is not None and s.releases != case.transcript", "False",
           "test_a_statement_beside_files_of_another_run_is_refused"),
    Mutant("statement: a larger delta than the plan's", "verification.py::_delta",
           "case.plan is not None and case.claimed.delta > case.plan.delta", "False",
           "test_a_statement_beside_files_of_another_run_is_refused"),
    Mutant("statement: a smaller group than the plan's", "verification.py::_group",
           "case.claimed.group < least", "False",
           "test_a_person_of_several_records_is_not_promised_one"),
    Mutant("statement: noise of others whom no file names", "_verified",
           "statement.accountant['kind'] in OF_OTHERS", "False",
           "test_noise_of_others_needs_what_they_agreed_on"),
    Mutant("statement: a gain that was not agreed on", "_agreed_by_others",
           "dict(statement.accountant) in _views_of(agreed, me, statement)", "True",
           "test_noise_of_others_needs_what_they_agreed_on"),
    Mutant("statement: a caveat of several lines", "Caveat.__post_init__",
           "settle(self, detail=one_line(self.detail))", "pass",
           "test_words_from_outside_stay_one_line"),
    Mutant("verifier: reads a device", "opened_outside", "not stat.S_ISREG(held.st_mode)", "False",
           "test_what_is_no_ordinary_file_is_not_read"),
    Mutant("statement: what it must say left out", "_caveats", "if missing: ...", "if False: ...",
           "test_an_assumption_cannot_be_struck_out"),
    Mutant("statement: another plan beside it", "_plan",
           "s.plan != plan_digest(...)", "s.plan == plan_digest(...)",
           "test_what_the_issue_lists_is_caught"),
    Mutant("statement: entries that do not follow", "_same_content",
           "value != found[name] or type(value) is not type(found[name])",
           "type(value) is not type(found[name])", "test_what_the_issue_lists_is_caught"),
    Mutant("statement: seeded noise not mentioned", "following",
           "seeded = randomness.seeded_noise", "seeded = False",
           "test_the_mention_of_a_seed_cannot_be_struck_out"),
    Mutant("statement: known batches amplified all the same", "_all_turns",
           "return Rounds(...)", "return part",
           "test_known_batches_leave_one_gaussian"),
    Mutant("statement: presence promised with known batches", "batches_known",
           "'zero-out' if mechanism.adjacency == 'add-or-remove' else mechanism.adjacency",
           "mechanism.adjacency", "test_known_batches_leave_one_gaussian"),
    Mutant("statement: a plan of persons speaks of records", "caveats_of",
           "getattr(contribution, 'kind', None) == 'persons' and ...", "False",
           "test_a_plan_of_persons_speaks_of_persons_and_nothing_less"),
    Mutant("statement: noise of several releases", "values/plan.py::together",
           "0.0 if min(sigmas) == 0 else 1 / math.hypot(*(1 / sigma for sigma in sigmas))",
           "min(sigmas)", "test_rounds_are_recognised_however_they_are_cut"),
    Mutant("transcript: rounds left out of an epoch", "Transcript.mechanism",
           "self._skipped and ...", "False",
           "test_rounds_left_out_of_an_epoch_do_not_make_one_of_the_others"),
    Mutant("search: a candidate's own way to protect persons", "plan_tuning",
           "person_as=persons", "person_as=request.person_as",
           "test_candidates_protect_persons_in_the_way_that_the_noise_is_for"),
    Mutant("search: a limit above the budget", "alternatives.py::_limits",
           "min(limits['epsilon'], request.budget.epsilon)", "limits['epsilon']",
           "test_a_limit_above_the_budget_does_not_raise_it"),
    Mutant("pareto: a point that no plan fulfils ends the search", "alternatives.py::_plans",
           "refused = error", "raise",
           "test_points_that_no_plan_fulfils_are_left_out"),
    Mutant("forecast: of noise that changes", "Proposal.forecasts",
           "self.plan.privacy.mechanism.rounds[-1].noise_multiplier", "self.plan.noise_multiplier",
           "test_noise_and_samples_that_change_are_shown_and_forecast"),
    Mutant("planner's page: samples that change", "web/planner.py::shown",
           "made.mean_batch", "made.batch",
           "test_noise_and_samples_that_change_are_shown_and_forecast"),
    Mutant("ledger: what still fits of noise that changes", "jobs/train.py::_largest",
           "[part.noise_multiplier for part in plan.privacy.mechanism]", "[plan.noise_multiplier]",
           "test_a_refusal_names_what_still_fits_of_noise_that_falls"),
    Mutant("gossip: persons with several records predicted as one", "planning/holders.py::headroom",
           "group = plan.records_per_person", "group = 1",
           "test_a_worker_s_persons_with_several_records_spend_what_its_statement_says"),
    Mutant("signature: of any content", "signing.py::encoded",
           "(len(name), name, len(payload), payload)", "(len(name), name, 0, b'')",
           "test_the_signed_bytes_are_those_of_the_specification"),
    Mutant("signature: by any key", "signing.py::attested", "key is not None and not fits", "False",
           "test_another_key_signs_for_itself_only"),
    Mutant("signature: of an earlier schema by any key", "signing.py::check", "key is not None",
           "False", "test_a_signature_of_every_schema_holds"),
    Mutant("signature: in another folder", "_signer",
           "differs or missing or signed.predicate != parse(text)", "False",
           "test_a_signature_stays_with_its_folder"),
    Mutant("evidence: a changed file", "require_evidence", "named[name] != present[name]", "False",
           "test_what_it_rests_on_cannot_be_taken_away"),
    Mutant("evidence: a file that is gone", "require_evidence", "name not in present", "False",
           "test_what_it_rests_on_cannot_be_taken_away"),
    Mutant("evidence: a file that nobody named", "require_evidence", "name not in named", "False",
           "test_a_statement_of_a_run_names_its_files"),
    Mutant("secure aggregation: colluders hide their noise too", "honest_clients",
           "clients - dropouts - colluders", "clients - dropouts",
           "test_ten_clients_of_which_two_drop_out_and_two_collude"),
    Mutant("secure aggregation: noise of drop-outs", "SecureAggregation.honest",
           "self.clients - self.dropouts", "self.clients",
           "test_settings_that_cannot_protect_are_refused"),
    Mutant("secure aggregation: two sums opened", "SecureAggregation.__post_init__",
           "2 * self.threshold <= self.clients + self.colluders",
           "self.threshold <= self.colluders", "test_settings_that_cannot_protect_are_refused"),
    Mutant("secure aggregation: few survivors", "Participant._on_survivors",
           "len(survivors) < self.settings.threshold", "len(survivors) < 1",
           "test_a_client_answers_one_list_of_survivors_and_a_long_enough_one"),
    Mutant("secure aggregation: second list", "Participant._on_survivors",
           "self.survivors != survivors", "False",
           "test_a_client_answers_one_list_of_survivors_and_a_long_enough_one"),
    Mutant("secure aggregation: others' keys", "Participant._on_roster",
           "not self._verify(client, content, signature)", "False",
           "test_a_server_that_swaps_keys_is_noticed"),
    Mutant("secure aggregation: a secret in the clear", "split",
           "np.frombuffer(entropy((threshold - 1) * len(secret)), np.uint8)",
           "np.zeros((threshold - 1) * len(secret), np.uint8)", "test_fewer_shares_say_nothing"),
    Mutant("secure aggregation: an update in the clear", "SecureClient.handle",
           "not (isinstance(effect, Send) and isinstance(effect.message, Update))", "True",
           "test_the_models_are_those_of_the_opened_sums"),
    Mutant("secure aggregation: masked again", "SecureClient._requested",
           "asked.base <= self._unmasked", "False",
           "test_updates_in_the_clear_and_second_unmaskings_are_refused"),
    Mutant("secure aggregation: attempts share keys", "attempted", "attempt", "0",
           "test_no_key_serves_two_attempts_rounds_or_pairs"),
    Mutant("discrete Gaussian: the second sum", "sum_divergence", "before / (before + 1)", "before",
           "test_the_charge_of_a_sum_holds_and_is_not_far_from_it"),
    Mutant("discrete Gaussian: charged once", "charged", "interval.upper + 2 * divergence",
           "interval.upper + divergence", "test_charged_moves_both_ends_outward"),
    Mutant("views: several local rounds add up", "_one_sum_a_round", "federation.local_rounds != 1",
           "False", "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: a cohort takes part whole", "_one_sum_a_round", "federation.cohort is not None",
           "False", "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: stopped clients still add noise", "gain",
           "other != client and round < ends[other]", "other != client",
           "test_where_others_have_stopped_their_noise_is_not_counted"),
    Mutant("views: momentum of clients that stop", "_one_sum_a_round",
           "(plan.use, plan.rounds)", "plan.use",
           "test_momentum_of_clients_that_stop_tells_their_past_sums"),
    Mutant("views: step sizes of plans of other lengths", "_one_sum_a_round",
           "(plan.use, plan.rounds)", "plan.use",
           "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: discrete noises in a weighted sum", "_one_sum_a_round",
           "plan.noise == 'grid'", "False", "test_no_gain_where_a_model_is_more_than_one_sum"),
    Mutant("views: discrete noises in an average of workers", "_on_a_grid",
           "plan.noise == 'grid'", "False",
           "test_an_outsider_of_sync_faces_everybody_s_noise_and_of_others_nobody_s"),
    Mutant("views: noise that changes out of step", "SecureAggregation.require",
           "(part.count, part.noise_multiplier)", "part.noise_multiplier",
           "test_what_secure_aggregation_does_not_go_with_is_refused"),
    Mutant("views: least noisy clients are known", "gain",
           "sorted(variances)[:max(0, len(variances) - known)]", "sorted(variances)[known:]",
           "test_the_gain_is_that_of_weighted_sums"),
    Mutant("estimator: δ from a private number of records", "PrivateEstimator._budget",
           "self.adjacency == 'add-or-remove'", "False",
           "test_delta_must_be_given_where_the_number_of_records_is_private"),
    Mutant("estimator: labels outside the declared classes", "classes", "len(strange)", "False",
           "test_what_is_wrong_is_said"),
    Mutant("estimator: classes read and not named", "classes",
           "(Caveat('classes-from-data', ', '.join(map(str, found))),)", "()",
           "test_declared_classes_may_be_missing_from_the_data"),
    Mutant("estimator: weights taken", "PrivateEstimator._fitting", "'sample_weight' in given",
           "False", "test_weights_are_refused_with_the_reason"),
    Mutant("estimator: a search not named", "circumstances",
           "found.append(Caveat('chosen-on-private-data', words))", "pass",
           "test_the_statement_of_a_chosen_model_says_so"),
    Mutant("estimator: a fitted scaler not named", "circumstances",
           "found.append(Caveat('preparation-from-data', '; '.join(steps)))", "pass",
           "test_steps_fitted_on_private_data_are_named"),
    Mutant("estimator: private counts stored", "PrivateEstimator.__getstate__",
           "name not in self._diagnostics", "True",
           "test_counts_of_private_records_are_not_stored"),
    Mutant("estimator: a failed fit keeps its classes", "PrivateEstimator._fitting",
           "self.__dict__ = before", "pass",
           "test_a_fit_that_fails_leaves_the_model_of_an_earlier_one"),
    Mutant("descent: a linear model's norms too small", "MeasuredOuter.bounds",
           "slopes * self.measured", "slopes * self.measured / 2",
           "test_without_noise_it_is_gradient_descent"),
    Mutant("descent: rows longer than their bound", "bounded_rows",
           "bound / torch.linalg.vector_norm(few, dim=1, keepdim=True)",
           "2 * bound / torch.linalg.vector_norm(few, dim=1, keepdim=True)",
           "test_without_noise_it_is_gradient_descent"),
    Mutant("descent: noise of half the sensitivity", "plan",
           "_scaled(found, mu, moved * C / N)", "_scaled(found, mu, C / N)",
           "test_budgets_are_spent_and_kept"),
    Mutant("descent: one round too many", "horizon", "total > allowed", "spent > allowed",
           "test_the_horizon_is_the_last_that_fits"),
    Mutant("descent: a gradient bound too small", "_OfBoundedSlope.lipschitz",
           "self.slope * self.row_bound", "self.row_bound",
           "test_slopes_are_derivatives_and_constants_hold"),
    Mutant("descent: a round that the filter is not charged for", "descend_steered", "ledger.spend",
           "ledger.would_exceed", "test_the_filter_keeps_the_budget_and_the_noise_falls"),
    Mutant("allocation: values spread to the right only", "_Points.wider", "mass[::2] + odd",
           "mass[::2]", "test_two_rounds_are_enclosed_in_both_directions"),
    Mutant("allocation: values gathered where their cell begins", "_Points.wider",
           "beyond[::2] + beyond[1::2] + mass[1::2]", "beyond[::2] + beyond[1::2]",
           "test_laws_have_mean_one_and_enclose_the_variance"),
    Mutant("allocation: pairs counted once", "_Sum.plus", "x.joined(x)", "x",
           "test_two_rounds_are_enclosed_in_both_directions"),
    Mutant("allocation: terms beyond the ends", "_one_term", "_Sum(1, found, lost, lost)",
           "_Sum(1, found, 0.0, 0.0)", "test_what_is_cut_off_is_charged"),
    Mutant("allocation: what is cut off of Q", "_Sum.trimmed",
           "lost += float(points.mass[:low].sum() + points.mass[high:].sum())", "pass",
           "test_what_is_cut_off_is_charged"),
    Mutant("allocation: what is cut off of P", "_Sum.trimmed",
           "points.mass[:low] @ value[:low] + points.mass[high:] @ value[high:]", "0.0",
           "test_what_is_cut_off_is_charged"),
    Mutant("allocation: what one of two sums has lost", "_Sum.plus", "self.lost + other.lost",
           "self.lost", "test_what_is_cut_off_is_charged"),
    Mutant("allocation: relative errors of masses", "_epoch_ratio",
           "2 * t * (_QUADRATURE + EPS * (2 * half + 8 * most + 64))", "0.0",
           "test_laws_of_many_rounds_enclose_the_moments"),
    Mutant("allocation: rounds that were not released", "_epoch_ratio", "t / epoch.rounds",
           "1.0", "test_laws_have_mean_one_and_enclose_the_variance"),
    Mutant("profiles: not the least", "Curve._least", "min", "max",
           "test_curves_are_of_the_least_that_any_theorem_proves"),
    Mutant("profiles: no chain", "privacy_loss", "chain is not None", "False",
           "test_curves_are_of_the_least_that_any_theorem_proves"),
    Mutant("truth: an attack above the certificate is cut down to it", "attained",
           "found > theorem.upper * (1 + _WIDTH)", "False",
           "test_an_attack_that_beats_the_certificate_is_an_alarm"),
    Mutant("truth: a claim above what is proven", "verification.py::_attained",
           "claimed.epsilon > most * (1 + _SAME)", "False",
           "test_a_lower_bound_on_the_truth_is_recomputed_and_never_above_what_is_proven"),
    Mutant("truth: any claim below", "verification.py::_attained", "case.of_this_version", "False",
           "test_a_lower_bound_on_the_truth_is_recomputed_and_never_above_what_is_proven"),
    Mutant("allocation: a law below taken for one above", "of_ratios", "(0, 1)", "(1, 0)",
           "test_many_rounds_by_simulation"),
    Mutant("allocation: radius of group clipping", "_allocated", "rounds.sensitivity(adjacency)",
           "1.0", "test_group_clipping_moves_by_two"),
    Mutant("turns: the part that has fewest", "Rounds.releases",
           "-(-self.count // self.sampling.rounds_per_epoch)",
           "max(1, self.count // self.sampling.rounds_per_epoch)",
           "test_parts_in_turns_are_the_rounds_of_the_part_that_has_most"),
    Mutant("correlated: turns do not add up", "sensitivity_over_turns",
           "padded.reshape(turns, separation).cumsum(axis=0)", "padded.reshape(turns, separation)",
           "test_sensitivity_is_the_worst_of_all_patterns"),
    Mutant("correlated: sampled turns may overlap", "uncorrelated",
           "rounds.strategy.bands > separation", "False",
           "test_sampled_turns_that_overlap_are_refused"),
    Mutant("correlated: groups are amplified", "uncorrelated",
           "group == 1 and ...", "True and ...",
           "test_sampled_turns_are_poisson_rounds_of_the_bands_norm"),
    Mutant("correlated: negative coefficients", "sensitivity_over_turns",
           "strategy.bands > separation and (not strategy.nonnegative)", "False",
           "test_negative_coefficients_need_turns_that_do_not_overlap"),
    Mutant("correlated: known batches keep their rate", "_all_turns",
           "CyclicPoisson(1.0, ...)", "part.sampling",
           "test_statements_say_that_rounds_have_no_guarantee_of_their_own"),
    Mutant("correlated: parts merge", "_same_release",
           "isinstance(one, Correlated)", "False", "test_files_keep_the_strategy_and_prefixes_too"),
    Mutant("correlated: a lag of the noise", "_Bands.pass_on", "self._last.appendleft",
           "self._last.append", "test_the_strategy_turns_the_noise_into_independent_numbers"),
    Mutant("correlated: the transcript forgets the strategy", "Transcript.require",
           "replace(one, noise_multiplier=sigmas[1]) != other", "False",
           "test_the_transcript_holds_the_strategy_that_was_drawn_with"),
    Mutant("gossip: a hostile count taken whole", "AsynchronousWorker._average",
           "min(max(count, sent.count - UNIT), sent.count + UNIT)", "count",
           "test_a_hostile_count_moves_a_run_by_half_an_update_an_exchange"),
    Mutant("network: an update that is none is not answered", "ServerDriver.undecoded",
           "messages.KINDS[frame.kind] is messages.Update", "False",
           "test_a_hostile_frame_changes_nothing_and_is_seen"),
    Mutant("cluster: a message of any size taken", "ActorLinks.came", "lambda _: self._largest",
           "lambda _: 1e18", "test_what_comes_is_judged_before_it_is_delivered"),
    Mutant("cluster: everything waits for a stopped worker", "ActorLinks.send",
           "way.waiting >= _QUEUE", "False",
           "test_of_what_a_stopped_worker_does_not_answer_eight_are_on_their_way"),
    Mutant("cluster: a dead worker stays dead", "run_workers", "-1", "0",
           "test_the_living_go_on_and_whoever_comes_back_is_met_again"),
    Mutant("frame: the sender's claim believed", "open_frame",
           "_public(senders[sender]).verify(bytes(signature), signed)", "pass",
           "test_forged_sender"),
    Mutant("frame: another run taken", "open_frame", "its_run != run", "False", "test_other_run"),
    Mutant("frame: somebody else's frame taken", "open_frame", "recipient != me", "False",
           "test_what_is_for_somebody_else"),
    Mutant("frame: any length allocated", "length_of", "length > limits[kind]", "False",
           "test_an_oversized_frame_is_refused_by_its_header_alone"),
    Mutant("frame: the payload not signed", "hashed", "blake3(payload).digest()", "bytes(32)",
           "test_open_frame_needs_the_key_of_the_place_not_any_key"),
    Mutant("decode: NaN taken", "judged", "raise DecodeError(f'{what} holds NaN or ∞')",
           "return", "test_an_honest_signature_under_bad_content"),
    Mutant("decode: another shape taken", "_Content.field",
           "self._parameters not in (None, length)", "False",
           "test_an_honest_signature_under_bad_content"),
    Mutant("decode: a vector is made before its length is known", "judged",
           "decode(kind, payload, given, parameters)", "decode(kind, payload, given)",
           "test_a_sparse_vector_of_another_length_is_refused_before_it_is_made"),
    Mutant("ledger: whoever counts cuts off what is being written", "exchange/storage.py::counted",
           "_records(storage.read(LEDGER) or b'', LEDGER)",
           "(RecordLog(storage, LEDGER).replay(), b'', 0)",
           "test_counting_a_ledger_leaves_what_another_process_is_writing"),
    Mutant("roster: a certificate for TLS 1.2", "Identity.__post_init__",
           "isinstance(shown, ec.EllipticCurvePublicKey)", "True",
           "test_a_certificate_that_is_cut_or_of_another_kind_is_refused"),
    Mutant("gossip: a neighbour fills the memory", "WorkerDriver._deliver",
           "self._room[came.sender].acquire(blocking=False)", "True",
           "test_of_what_one_neighbour_sends_a_bounded_number_waits"),
    Mutant("carriers: a connection that ends at once is made again at once", "reconnecting",
           "time.monotonic() - begin > last", "True",
           "test_connections_that_end_at_once_are_made_ever_less_often"),
    Mutant("log: a torn record read as whole", "_records", "sums[_SUM_BYTES:] != of_record",
           "False", "test_any_other_damage_stops_the_reader_or_loses_the_last_record_only"),
    Mutant("ledger: two contents for a round", "ClientLedger.commit",
           "self._released[release.round].digest != new.digest", "False",
           "test_one_content_a_round"),
    Mutant("ledger: another data set", "ClientLedger.__init__", "records[0] != self._opening",
           "False", "test_it_goes_on_with_its_own_run_only"),
    Mutant("client: sent before it is written", "ClientDriver.frame", "kept is None",
           "kept is None and False", "test_an_update_that_is_not_in_the_ledger_cannot_be_sent"),
    Mutant("server: another member's connection", "Driver.received",
           "peer not in (None, opened.sender)", "False",
           "test_another_members_good_frame_over_ones_own_connection_is_refused"),
    Mutant("federation: a preparation that nobody releases", "Agreement._require_runnable",
           "plan.preparation is not None", "False",
           "test_a_plan_that_prepares_the_data_is_refused"),
    Mutant("federation: noise correlated over rounds that may be lost",
           "Agreement._require_runnable", "plan.mechanism.correlated", "False",
           "test_a_plan_that_no_client_can_run_is_refused_before_anybody_has_keys"),
    Mutant("federation: a client that goes beyond its plan", "ClientMachine._next",
           "self.updates >= self._limit", "self.updates > self._limit",
           "test_nothing_is_computed_beyond_the_plan"),
    Mutant("federation: a lost ledger that nobody notices", "ClientMachine._model", "self.updates",
           "self.updates + 1", "test_a_ledger_that_was_set_back_stops_for_ever"),
    Mutant("federation: two updates on one model", "ClientMachine._next", "self.base <= self._last",
           "self.base < self._last",
           "test_an_update_is_committed_before_it_is_sent_and_sent_until_it_is_answered"),
    Mutant("federation: a policy that allows twice as much", "Policy.require",
           "found > self.epsilon", "found > 2 * self.epsilon",
           "test_a_plan_beyond_the_policy_is_refused_before_anything_is_sent"),
    Mutant("federation: steps that climb", "subtract_step",
           "np.subtract(weights, step * scale, out=out)", "np.add(weights, step * scale, out=out)",
           "test_own_steps_go_down_along_the_gradient"),
    Mutant("federation: a cadence that begins when a batch is ready", "ClientMachine._computed",
           "self._begun + beats * cadence", "self._now + beats * cadence",
           "test_an_update_leaves_at_a_beat_and_is_in_the_ledger_before"),
    Mutant("federation: a restart tells what was done within a beat", "ClientMachine.__init__",
           "federation.cadence is not None", "False",
           "test_after_a_restart_nothing_tells_whether_the_batch_was_done"),
    Mutant("federation: secure sums of everybody in place of the cohort", "_securely",
           "rule.asked", "tuple(range(len(made)))",
           "test_cohorts_cost_what_their_clients_released"),
    Mutant("client: a count that lags by one", "ClientDriver.execute", "effect.release.round + 1",
           "effect.release.round",
           "test_a_restored_ledger_releases_nothing_whatever_the_server_says"),
    Mutant("federation: sent before it is written", "ServerMachine._decide",
           "[on.Append(entry), *answers]", "[*answers, on.Append(entry)]",
           "test_an_update_is_in_the_journal_before_it_is_acknowledged"),
    Mutant("federation: other bytes for a round", "ServerMachine._update", "known != NO_MARK",
           "known == NO_MARK",
           "test_a_replay_is_acknowledged_again_and_other_bytes_are_a_conflict"),
    Mutant("federation: no bound on the norm", "ServerMachine._reachable", "length <= limit",
           "True", "test_what_is_refused_changes_nothing"),
    Mutant("federation: marks lost in a snapshot", "ServerMachine._restore",
           "bytearray(marks[start:end]) if end > start else None", "None",
           "test_a_snapshot_at_any_place_gives_the_same_bits"),
    Mutant("federation: a version that does not wait", "Asynchronous.advance", "self._behind",
           "self._behind and self.version % 2", "test_a_new_model_waits_for_every_round_below_it"),
    Mutant("noise: not bound to the clip norm", "PrivateRounds._about",
           "replace(chosen, index=0)", "replace(chosen, index=0, clip_norm=1.0)",
           "test_noise_is_bound_to_the_clip_norm_and_the_part_of_each_round"),
    Mutant("noise: bytes of another norm kept", "PrivateRounds._about",
           "(chosen.origin, chosen.clip_norm, chosen.sampling, self.context)",
           "(chosen.origin, chosen.sampling, self.context)",
           "test_noise_is_bound_to_the_clip_norm_and_the_part_of_each_round"),
    Mutant("shards: one noise for all of them", "BoundNoise.at",
           "self._shard is not None", "False",
           "test_each_shard_has_noise_of_its_own"),
    Mutant("shards: noise bound to the process's own alone", "PrivateRounds._finish",
           "blake3(self.team.joined(bound)).digest()", "bound",
           "test_noise_belongs_to_all_shards_and_to_one"),
    Mutant("shards: a record that makes shares even counts", "share_of",
           "batch.some(every, None, count)", "batch.some(every, None, len(every))",
           "test_even_shares_hold_every_record_once"),
    Mutant("noise: not bound to the sum", "BoundNoise.bind",
           "state.update(vector.cpu().numpy().view(np.uint8).data).digest()", "state.digest()",
           "test_noise_is_bound_to_every_number_of_a_sum"),
    Mutant("noise: bound to the first number of a sum", "BoundNoise.bind", "vector.cpu()",
           "vector[:1].cpu()", "test_noise_is_bound_to_every_number_of_a_sum"),
    Mutant("noise: not bound to the count", "PrivateRounds._finish",
           "(chosen.index, count, inputs, self.bound[-1:])",
           "(chosen.index, inputs, self.bound[-1:])",
           "test_noise_is_bound_to_count_weights_layout_and_context"),
    Mutant("noise: not bound to the weights", "PrivateRounds._finish",
           "(chosen.index, count, inputs, self.bound[-1:])",
           "(chosen.index, count, self.bound[-1:])",
           "test_noise_is_bound_to_count_weights_layout_and_context"),
    Mutant("noise: correlated, not bound to the sums before", "PrivateRounds._finish",
           "(chosen.index, count, inputs, self.bound[-1:])", "(chosen.index, count, inputs)",
           "test_correlated_noise_is_bound_to_the_sums_before"),
    Mutant("noise: a copied process counts its own rounds only", "PrivateRounds._releases",
           "os.getpid() != self._process", "False",
           "test_a_fork_in_mid_run_has_other_noise_and_counts_both"),
    Mutant("own loop: raw gradients in the optimizer's state", "_Rounds._standing",
           "_of_state(self.descent.optimizer)", "b''",
           "test_raw_gradients_are_not_carried_past_a_round"),
    Mutant("own loop: raw gradients in a plain tensor", "_Rounds._standing",
           "_of_attributes(self.model)", "b''",
           "test_raw_gradients_are_not_carried_past_a_round"),
    Mutant("paid: the mark after the round", "plan.py::marked",
           "paid.ahead(before + index + 1)", "pass",
           "test_the_mark_is_in_the_book_before_a_round_is_in_the_folder"),
    Mutant("paid: the mark one round late", "plan.py::marked",
           "paid.ahead(before + index + 1)", "paid.ahead(before + index)",
           "test_the_mark_is_in_the_book_before_a_round_is_in_the_folder"),
    Mutant("paid: a second release of a round is not", "plan.py::marked",
           "copies > 1", "copies > 9",
           "test_a_changed_loss_pays_for_its_rounds_again"),
    Mutant("paid: a mark that lags behind", "PaidRun.ahead", "rounds > self.marked",
           "rounds > self.marked + 1", "test_marks_run_ahead_about_once_a_second"),
    Mutant("paid: rounds beyond the reservation", "PaidRun.ahead",
           "rounds > self.charge.rounds", "False",
           "test_marks_run_ahead_about_once_a_second"),
    Mutant("paid: settled with fewer rounds than were noted", "PaidRun.settle",
           "released < self._noted", "False",
           "test_a_book_that_is_gone_stops_the_run_before_the_round"),
    Mutant("paid: a folder that was set back goes on", "PaidRun.recorded",
           "(known := self.known) > rounds", "(known := 0) > rounds",
           "test_a_ledger_that_was_set_back_behind_its_book_releases_nothing"),
    Mutant("paid: a copy releases what another process marked", "PaidRun.ahead",
           "seen=self.marked", "seen=None",
           "test_a_run_that_a_copy_overtook_releases_nothing_more "
           "test_of_copies_that_look_at_the_same_moment_one_goes_on[release] "
           "test_a_copy_neither_releases_nor_returns_what_another_process_marked[another process]"),
    Mutant("paid: a copy returns what another process marked", "PaidRun.__exit__",
           "seen=self.marked", "seen=None",
           "test_of_copies_that_look_at_the_same_moment_one_goes_on[return] "
           "test_a_copy_neither_releases_nor_returns_what_another_process_marked[no data]"),
    Mutant("run folder: its file is its only lock", "training/folder.py::_take",
           "fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
           "test_a_folder_stays_its_runs_where_the_lock_is_deleted"),
    Mutant("paid: a mark of two copies at the same moment", "Store._change",
           "held.mark > seen", "False",
           "test_of_copies_that_look_at_the_same_moment_one_goes_on[release] "
           "test_what_is_said_again_after_a_lost_answer_changes_nothing"),
    Mutant("paid: a copy without checkpoint begins anew", "training/run.py::_begun",
           "task.paid.begun > _before(task)", "task.paid.known > _before(task)",
           "test_a_copy_without_checkpoint_stops_at_its_runs_first_mark"),
    Mutant("paid: copies of a folder are one run", "Ledger.paid",
           "f'{name[:40]} {secrets.token_hex(8)}'", "'run'",
           "test_of_copies_of_a_folder_one_goes_on_with_its_reservation[True]"),
    Mutant("book: a part without the charges to other schemes", "Store.total",
           "sum_of(rule, sums, part)", "rule.total(sums[''], {part: held})",
           "test_parts_that_are_disjoint_count_once[sqlite]"),
    Mutant("paid: a copy releases other sums of the rounds of another", "Checkpointer.resume",
           "known > listed", "False",
           "test_an_older_copy_of_a_run_repeats_its_rounds_only_as_they_were"),
    Mutant("training: an edited plan.json is taken for the plan", "folder.py::_began_with",
           "Plan.from_dict(...) if ... else Plan.load(path)", "Plan.load(path)",
           "test_the_plan_of_a_killed_run_is_not_that_of_an_edited_plan_json"),
    Mutant("paid: later rounds at an earlier phase's price", "_paid_rounds",
           "min(rounds, first(at.stop))", "first(at.stop)",
           "test_rounds_that_a_client_missed_do_not_make_later_ones_cheaper"),
    Mutant("federation: a goodbye that is forgotten", "take_part_as_client",
           "driver.done == LEFT or ...", "driver.done == LEFT",
           "test_who_left_and_came_back_counts_its_whole_plan"),
    Mutant("book: a call is anyone's of its name", "Store._write",
           "f'{self.actor}\\n{call}'", "call",
           "test_a_call_is_its_actors[sqlite]"),
    Mutant("paid: a stopped run settles with nothing", "PaidRun.__exit__",
           "self.book.settle(self.number, self.begun, ...)",
           "self.book.settle(self.number, 0, run=self._run)",
           "test_a_run_without_a_folder_that_stops_is_settled_with_its_rounds"),
    Mutant("paid: a run that can go on is settled", "PaidRun.__exit__",
           "self._path and self.begun", "False",
           "test_a_stopped_run_stays_active_and_the_same_folder_goes_on"),
    Mutant("paid: noise of joined releases as of one", "PaidRun.again",
           "math.sqrt(times) * (1 + 2.0**-50)", "1.0",
           "test_rounds_released_again_are_paid_for_as_one_release_of_less_noise"),
    Mutant("paid: another plan goes on with a reservation", "_going_on",
           "charge != found.charge", "False",
           "test_another_plan_does_not_go_on_with_a_reservation"),
    Mutant("paid: means are released before the run can be resumed", "training/run.py::_centred",
           "folder is not None and not (task.resume or paid.begun)", "False",
           "test_a_run_that_stops_while_its_means_are_released_is_resumed_and_paid_once"),
    Mutant("paid: means of an earlier run taken for this one's", "training/run.py::_centred",
           '(folder.path / fitting.PREPARED).unlink(missing_ok=True)', "None",
           "test_a_run_that_stops_while_its_means_are_released_is_resumed_and_paid_once"),
    Mutant("passes: windows of a parameter that overlap taken for apart", "_apart",
           "count > 1 and step <= reach", "False",
           "test_equals_one_example_at_a_time[windows_of_a_parameter_that_overlap-float64]"),
    Mutant("passes: a conjugate's sign is lost", "sums.py::slot", "not value.is_neg()", "True",
           "test_equals_one_example_at_a_time[imaginary_part_of_a_conjugate-float64]"),
    Mutant("passes: values of parameters are written to", "VmapMode._check_target",
           "place in self.places.derived", "False",
           "test_value_of_parameters_that_is_written_to_between_its_uses"),
    Mutant("lanes: a rule of real numbers for complex weights", "VmapMode._ruled",
           "not any(map(torch.is_complex, trained.values()))", "True",
           "test_equals_one_example_at_a_time[complex_weights_from_real_parts-float64]"),
    Mutant("alone: reentrant checkpoints as torch has them", "_replace_apply",
           "turns.held.depth", "_answers()",
           "test_a_record_that_sends_all_alone_changes_no_checkpointed_part"),
    Mutant("passes: gradients through an output that has none", "_OwnCall.result",
           "value.detach() if fixed else value", "value",
           "test_equals_one_example_at_a_time[output_of_a_function_that_is_not_differentiated-float64]"),
    Mutant("passes: a Function's inputs seem to need no gradient", "_OwnCall._run",
           "notes.needs_input_grad[at]", "False",
           "test_equals_one_example_at_a_time"
           "[outputs_of_a_function_that_are_differentiated_as_its_inputs-float64]"),
    Mutant("declared: no number where an example alone has one", "_compare",
           "lost or (...)", "not squares <= (1e4 * width) ** 2 * scale and squares > 0",
           "test_examples_that_spoil_each_other_with_no_number_stop_the_step"),
    Mutant("passes: rows of a table reached without a report", "_Attempt._backward",
           "mode.places.leaves()", "self.trained",
           "test_backward[rows_of_a_table_where_functions_are_not_seen]"),
    Mutant("blocks: what a ghost sum is formed of is not compared", "clipped.py::_stored",
           "yield from term.stored", "yield from ()",
           "test_kernels_gradients_that_are_never_written_out_are_compared_as_they_are_held"),
    Mutant("blocks: longer than a processor keeps", "clipped.py::shortened",
           "MOST_NUMBERS // widest", "MOST_NUMBERS",
           "test_values_that_a_processor_does_not_keep_shorten_the_blocks"),
    Mutant("public proxy: the job's own file under another name", "public_proxy.py::_public",
           "own.samefile(other)", "own == other",
           "test_a_jobs_own_file_is_no_public_proxy_and_a_copy_is_told"),
    Mutant("statistics: paid for before the rows are looked at", "release_job",
           "partial(paid.ahead, 1)", "paid.ahead(1)", "test_a_table_that_is_refused_costs_nothing"),
    Mutant("Rényi: the difference of binary pairs is lost in rounding", "_above_tangent",
           "order * abs(x) < 0.1", "False",
           "test_the_optimal_conversion_is_never_above_the_exact_one"),
    Mutant("client: an error of its connection is not told", "driving.py::watched",
           "failed(error)", "None",
           "test_an_error_that_no_other_attempt_mends_ends_the_client"),
    Mutant("liveness: silence before a sleep counts at the next look", "Liveness.look",
           "slept and peer not in self.lost", "False",
           "test_after_a_sleep_neighbours_have_as_long_as_ever"),
    Mutant("gossip: one release of many is taken for one round", "network_gains",
           "gossip.rounds > 1 and not _averages(gossip)", "rounds > 1 and not _averages(gossip)",
           "test_one_release_of_a_longer_gossip_is_not_one_round"),
    Mutant("disjoint: what breaks one holder's guarantee is dropped",
           "accounting/statement.py::disjoint",
           "(*one.breaks, *one.not_covered)", "()",
           "test_a_guarantee_for_all_holders_needs_that_of_each"),
    Mutant("saved plan: fewer rows of a person than the job's", "jobs/train.py::_saved",
           "plan.records_per_person < most", "False",
           "test_a_plan_for_one_row_does_not_run_where_several_are_one_persons"),
    Mutant("init: an entry's line ends", "_on_one_line", "one.isprintable()", "True",
           "test_an_entry_writes_no_line_into_the_job"),
    Mutant("pareto: where the graph was measured is not said", "alternatives.py::pareto",
           "hasattr(graph, 'told')", "False",
           "test_a_search_by_a_graph_of_private_records_says_so"),
    Mutant("pareto: a user's function is called the planner's choice", "alternatives.py::pareto",
           "Caveat('declared')", "Caveat('planned')",
           "test_a_utility_graph_replaces_the_noise_objective"),
    Mutant("federation's plan: an ε is rounded down", "report/holders.py::_bound",
           "at_most(value)", "f'{value:.4g}'",
           "test_an_epsilon_by_who_sees_what_is_rounded_up"),
    Mutant("federation's plan: a budget is rounded down", "_show_federation_plan",
           '_bound("budget.epsilon")', '"{0.budget.epsilon:.4g}"',
           "test_an_epsilon_by_who_sees_what_is_rounded_up"),
    Mutant("phases: rounds of a phase that is over keep the server", "Asynchronous._later",
           "own.stop > self.version", "True",
           "test_rounds_left_over_from_a_phase_that_ended_keep_no_server"),
    Mutant("secure aggregation: a key of small order", "Aggregator._checked",
           "masking.agree(bytes(range(32)), half, b'')", "None",
           "test_a_key_of_small_order_stops_nobody"),
    Mutant("paid: the other accounts are found by the user's name", "Ledger._others",
           "name in found.get('others', ())", "False",
           "test_who_resumes_a_run_finds_all_its_reservations"),
    Mutant("evaluation: more rows than a processor keeps", "training/metrics.py::evaluate",
           "memory_of(model).widest", "1",
           "test_a_model_that_a_pass_was_tried_on_answers_as_many_rows_as_a_processor_keeps"),
    Mutant("kernels: written gradients may take any memory", "sums.py::Convolved._ghost_wins",
           "2.5 if written > width * sum(sides) else 1", "1",
           "test_a_kernels_way_hangs_on_its_shape_and_not_on_the_batch"),
    Mutant("paid: records before the refusal", "training/run.py::train",
           "paid = reserved(held, ledger, plan, folder, resume, overwrite, team)",
           "paid = (opened(data, test), list(data), reserved(held, ledger, plan, folder, resume, "
           "overwrite, team))[2]",
           "test_a_refusal_reads_no_record_and_names_the_largest_plan_that_fits"),
    Mutant("paid: an unpaid run goes on in a paid folder", "reserved",
           "(folder.path / folders.RESERVATION).is_file()", "False",
           "test_a_stopped_run_stays_active_and_the_same_folder_goes_on"),
    Mutant("paid: the largest plan that fits is one round less", "most_rounds",
           "range(1, len(mechanism) + 1)", "range(1, len(mechanism))",
           "test_most_rounds_is_the_last_that_fits"),
    Mutant("paid: a client's release before its mark", "ClientLedger.commit",
           "self._ahead is not None", "False",
           "test_a_federations_client_settles_from_its_ledger"),
    Mutant("verify: a book that was set back", "_in_book",
           "if problems := book.verify(head): ...", "pass",
           "test_a_statement_holds_against_its_book_and_not_against_one_set_back"),
    Mutant("service: a stored password changes the book", "Service._acting",
           "browser and kind.lower() == ...", "kind.lower() == 'basic'",
           "test_the_page_shows_the_year_and_nothing_of_it_is_code"),
    Mutant("releases: another sum is the same release", "ReleasedRounds.note",
           "return self._times[index]", "return 1",
           "test_every_release_is_kept_and_counted_once"),
    Mutant("releases: the list may have lost entries", "ReleasedRounds.require",
           "[len(kept), ...] != mark", "False",
           "test_a_list_of_releases_that_lost_what_the_checkpoint_saw_is_refused"),
    Mutant("simulations: behind masks, a mean of other bits than a server's", "_securely",
           "(opened / divisor).astype(np.float32)", "opened / divisor",
           "test_the_model_has_the_bits_of_real_processes_and_is_that_of_the_plain_sums"),
    Mutant("draws: rows that fill up share the way back", "Draws._wide", "again.detach()", "again",
           "test_examples_that_run_apart_keep_their_gradients_through_a_random_function"),
    Mutant("draws: by place, and not by example", "Draws.narrowed", "self._mine is None", "True",
           "test_random_numbers_of_the_model_slow_nothing_and_stay_with_their_example"),
    Mutant("turns: a forked process holds none", "_Turns._renew",
           "range(self.held.depth)", "range(0)",
           "test_a_process_that_is_forked_in_a_turn_ends_it_and_takes_others"),
    Mutant("releases: a second one costs nothing", "_EqualRounds.together",
           "self.times == 1", "True",
           "test_rounds_released_again_have_the_noise_of_all_their_releases"),
    Mutant("releases: an epoch's round by itself", "_EqualRounds.apart",
           "self.like.sampling.rounds_per_epoch == 1", "True",
           "test_an_epoch_counts_as_often_as_its_round_that_was_released_most"),
    Mutant("federation: a part that takes its neighbour's records", "Dense.some",
           "self.values[part]", "self.values[:part.stop - part.start]",
           "test_every_part_is_the_clipped_sum_of_its_own"),
    Mutant("statement: another model file", "_about", "about.model != case.model", "False",
           "test_another_model_file_is_noticed"),
    Mutant("own loop: statistics taken after the last round", "_Rounds.finish",
           "name in changed", "False",
           "test_what_changes_after_the_last_round_is_said_or_refused"),
    Mutant("own loop: weights changed after the last round", "_Rounds.finish",
           "{*changed} - {_STATE}", "()",
           "test_what_changes_after_the_last_round_is_said_or_refused"),
    Mutant("own loop: a model that was changed", "_Rounds._changed",
           "self._left.get(name) != now.get(name)",
           "False", "test_a_model_that_was_changed_is_refused"),
    Mutant("own loop: a weight that the optimizer passes over", "_Rounds._require_moved",
           "name in same and ...", "False",
           "test_a_step_moves_what_the_plan_trains_and_nothing_else"),
    Mutant("own loop: a frozen weight that the step moves", "_Rounds._require_moved",
           "moved and ...", "False",
           "test_a_step_moves_what_the_plan_trains_and_nothing_else"),
    Mutant("own loop: a closure beside a loss", "_Rounds.state_by", "self._value is not None",
           "False", "test_a_step_needs_a_batch_and_one_loss"),
    Mutant("records: a record of another form is read as the others", "DatasetRecords._collated",
           "(form := _form_of(record)) != self._form", "False",
           "test_a_record_of_another_form_changes_no_other"),
    Mutant("records: keys in the order of the first record", "records.py::_plain",
           "sorted(record, key=str)", "record",
           "test_a_record_of_another_form_changes_no_other"),
    Mutant("paid: two runs from one reservation", "PaidRun.paid", "self._used = True", "pass",
           "test_a_reservation_pays_for_one_run"),
    Mutant("paid: two runs from one part of a series", "SeriesPart.paid",
           "self._used = True", "pass",
           "test_plans_of_a_series_are_paid_by_one_charge"),
    Mutant("paid: a series that broke off goes on", "PaidRun.__exit__",
           "self._over = over = True", "over = True",
           "test_a_series_that_broke_off_releases_nothing_more"),
    Mutant("paid: rounds behind the settlement", "PaidRun._require_open", "self._over", "False",
           "test_plans_of_a_series_are_paid_by_one_charge"),
    Mutant("ledger: any number stands for rounds paid again", "jobs/account.py::_in_book",
           "_paid_again(ran, own, ...)", "True",
           "test_evidence_that_names_other_payments_pays_for_nothing"),
    Mutant("gossip: changes that add up to nonsense", "SynchronousWorker._go_on",
           "self.own.refusal(other, ...)", "None",
           "test_changes_that_add_up_to_nonsense_are_refused"),
    Mutant("passes: one that was given up stays in memory", "VmapMode.__exit__",
           "reason is not None", "False",
           "test_a_pass_that_was_given_up_leaves_nothing_behind"),
    Mutant("ledger: rounds before those that were paid again", "PaidRun.again",
           "first <= rounds <= end", "rounds <= end",
           "test_an_earlier_round_that_is_released_again_later_is_paid_too"),
    Mutant("ledger: one round paid again covers several", "jobs/account.py::_paid_again",
           "spare.remove(one)", "pass",
           "test_a_round_that_was_paid_again_pays_for_one_round"),
    Mutant("preparation: another plan's ranges", "require_prepared",
           "(privacy.preparation, privacy.examples) != ...", "False",
           "test_ranges_alone_are_not_all_that_a_plan_pays_for"),
    Mutant("records: a null makes floats of its block", "records.py::_misses",
           "column.null_count", "False",
           "test_missing_entries_of_an_arrow_data_set_are_refused_before_it_is_read"),
    Mutant("records: a sampler's part of the data is all of it", "_require_all",
           "kind in known", "True",
           "test_a_sampler_of_ones_own_is_refused_as_none_would_be_used"),
    Mutant("records: a sampler over a part of the data is over all of it", "_require_all",
           "len(over) == len(data)", "True",
           "test_a_sampler_of_ones_own_is_refused_as_none_would_be_used"),
    Mutant("preparation: ranges from a seed are private", "preparation.py::released",
           "after is not None and after.seeded", "False",
           "test_ranges_alone_are_not_all_that_a_plan_pays_for"),
    Mutant("losses: a mean that divides by weights counts as each one's", "of_each",
           "classes and loss.weight is not None", "False",
           "test_torchs_criteria_train_as_their_values_an_example_do"),
    Mutant("training: an interrupted run has spent for a whole person", "UnfinishedRun.load",
           "epsilon(done, plan.delta, plan.records_per_person)", "epsilon(done, plan.delta)",
           "test_replacing_an_interrupted_run_says_what_it_has_spent"),
    Mutant("planning: plans beside one of persons are of persons", "solve.py::_with_noise",
           "groups != plan.groups", "True",
           "test_neighbours_of_a_plan_of_persons_are_plans_of_persons"),
    Mutant("training: noise for weights that the loss does not reach", "require_reached",
           "len(unreached) == len(trained)", "False",
           "test_weights_that_take_no_part_in_the_loss_are_named"),
    Mutant("own loop: gradients accumulated over batches", "_Rounds.next_batch",
           "self._given > self.done", "False", "test_gradients_are_not_accumulated_over_batches"),
    Mutant("own loop: a second loss in a round", "_Rounds.take", "self._value is not None", "False",
           "test_a_step_needs_a_batch_and_one_loss"),
    Mutant("own loop: an earlier batch", "_Rounds.take", "batch <= self.done", "False",
           "test_a_step_needs_a_batch_and_one_loss"),
    Mutant("gossip: a round beyond the plan", "OwnReleases.begin", "self.updates >= self.limit",
           "self.updates > self.limit",
           "test_no_worker_makes_more_updates_than_its_plan_has_rounds"),
    Mutant("gossip: a ledger set back by one", "AsynchronousWorker._heard", "self.own.updates",
           "self.own.updates + 1", "test_a_ledger_that_was_set_back_releases_nothing_more"),
    Mutant("gossip: a waiting worker's ledger set back", "SynchronousWorker._heard",
           "message.known > self.own.updates", "message.known > self.own.updates + 9",
           "test_a_waiting_worker_whose_ledger_was_set_back_releases_nothing_more"),
    Mutant("gossip: what a worker said last is not in its ledger", "OwnReleases.__init__",
           "self.sent[one.base - before] = sent", "self.sent[one.base - before] = self.held",
           "test_no_death_and_no_lost_message_changes_a_bit"),
    Mutant("gossip: what was heard of a neighbour is forgotten", "WorkerDriver._arrived",
           "self._heard[came.sender].note(message.round, came.proof)",
           "self._heard[came.sender].note(0)",
           "test_what_was_heard_of_a_neighbour_is_known_to_the_next_life"),
    Mutant("gossip: the own count lags", "WorkerDriver._handle", "effect.release.round + 1",
           "effect.release.round",
           "test_a_simulation_of_the_order_after_a_restart_comes_to_the_same_transcripts"),
    Mutant("gossip: the own noise stays where gradients are taken", "OwnReleases.release",
           "self._beyond", "np.float32(0)",
           "test_the_point_of_a_gradient_leaves_out_what_was_not_passed_on_yet"),
    Mutant("gossip: who meets nobody leaves out all it ever added", "OwnReleases.release",
           "self._fresh is not None and self.share < 1", "self._fresh is not None",
           "test_who_meets_nobody_does_not_take_all_gradients_at_one_point"),
    Mutant("planner: a linear model's longest step forgets its weights", "Trained.step",
           "max(1.0, self.parameters / STEP_WEIGHTS)", "1.0",
           "test_a_linear_models_scores_carry_the_noise_that_the_rule_allows"),
    Mutant("planner: image features in small batches", "_batch_and_length",
           "request.image_features and request.by_scores", "False",
           "test_all_passes_are_taken_at_the_same_promise"),
    Mutant("planner: large batches for what is not planned by scores", "_batch_and_length",
           "request.image_features and request.by_scores", "request.image_features",
           "test_what_is_given_keeps_the_usual_rules"),
    Mutant("planner: ever shorter paths with more features", "score_noise",
           "min(features, MOST_FEATURES)", "features",
           "test_more_than_a_thousand_features_want_no_shorter_path"),
    Mutant("planner: nobody says that features are of images", "opened",
           "found.setdefault('image_features', True)", "pass",
           "test_fixed_features_say_it_by_themselves"),
    Mutant("export: nobody says that a network takes features", "whole_model",
           "before(predictor)", "{}", "test_an_onnx_file_says_that_it_takes_features"),
    Mutant("gossip: what an exchange takes along is forgotten", "OwnReleases.move",
           "self.share - weight * share * self._workers / (self._workers - 1)", "self.share",
           "test_the_point_of_a_gradient_leaves_out_what_was_not_passed_on_yet"),
    Mutant("gossip: half of what a message tells", "_leverage", "rest[place] ** 2 / length",
           "rest[place] ** 2 / (2 * length)",
           "test_the_gain_is_that_of_independent_linear_algebra"),
    Mutant("gossip: messages are solved one by one", "_leverage", "if part: ...", "if False: ...",
           "test_the_gain_is_that_of_independent_linear_algebra"),
    Mutant("gossip: rounds compose at hidden weights", "network_gains",
           "gossip.rounds > 1 and (not _averages(gossip))", "False",
           "test_what_is_not_proven_is_refused"),
    Mutant("gossip: a message too late", "network_gains", "round * gossip.exchanges + 1",
           "round * gossip.exchanges + 2",
           "test_gains_are_those_of_the_messages_that_the_workers_send"),
    Mutant("gossip: an outsider where nothing averages", "_one_model_a_round",
           "plain and _averages(gossip)", "plain",
           "test_an_outsider_of_sync_faces_everybody_s_noise_and_of_others_nobody_s"),
    Mutant("gossip: clipped exchanges taken for linear", "_linear",
           "gossip.compression.exact and gossip.trust.difference is None",
           "gossip.compression.exact", "test_what_is_not_proven_is_refused"),
    Mutant("gossip: the cap is not what the ledger released", "worker_statement", "released=count",
           "released=1", "test_neighbours_see_the_worker_s_own_rounds_as_the_ledger_counted_them"),
    Mutant("gossip: columns need not sum to one", "Mixing.check",
           "_sums_to_one('column', worker, columns[worker])", "pass",
           "test_a_matrix_that_is_not_doubly_stochastic_is_one_line"),
    Mutant("gossip: the best round for all of several kinds", "network_curve", "min", "max",
           "test_rounds_that_an_observer_sees_unequally_each_count_at_their_own_noise"),
    Mutant("persons: the budget is for one row", "PlanRequest.protected",
           "1 if self.person_as == 'contribution' else self.records_per_person", "1",
           "test_the_budget_holds_for_all_records_of_a_person"),
    Mutant("persons: a statement is about one row", "account",
           "int(getattr(given, 'records_per_person', 1))", "1",
           "test_the_budget_holds_for_all_records_of_a_person"),
    Mutant("persons: the noisier way is taken", "better", "ratio < 1", "ratio >= 1",
           "test_the_way_with_less_noise_for_its_signal_is_taken"),
    Mutant("persons: a row more than may be kept", "by_person", "place < most", "place <= most",
           "test_every_person_has_their_own_rows_and_no_more_than_may_be"),
    Mutant("persons: rows are summed", "_mean_over_rows",
           "(values * there).sum(1) / there.sum(1).clamp(min=1)", "(values * there).sum(1)",
           "test_a_contribution_is_the_clipped_gradient_of_a_persons_mean_loss"),
    Mutant("persons: a plan for single rows", "arranged", "promised < most", "False",
           "test_what_does_not_go_together_is_refused"),
    Mutant("planner's page: any token", "_Handler._refused",
           "not hmac.compare_digest(given.encode(), self.server.token.encode())", "False",
           "test_nobody_else_is_answered"),
    Mutant("planner's page: another site's page", "_Handler._refused",
           "origin is not None and origin.removeprefix('http://') not in self.server.names",
           "False", "test_nobody_else_is_answered"),
    Mutant("statement's page: what is found is rounded down", "_lead", "math.ceil(...)",
           "math.floor(100 * power)",
           "test_a_statement_begins_with_a_sentence_a_number_and_a_picture"),
    Mutant("statement's page: an audit that refuted", "_audited", "refuted if ... else None",
           "None", "test_what_was_checked_has_its_evidence"),
    Mutant("curve of a group: the floor of one record", "TradeOff.group", "size * self.floor",
           "self.floor", "test_group_of_a_gaussian_is_a_gaussian_of_the_multiple"),
    Mutant("gossip: the round with most noise of others counts", "outsider_gain", "min(...)",
           "max(...)",
           "test_an_outsider_s_gain_is_that_of_the_round_with_the_least_noise_of_others"),
    Mutant("secure sums: masked with other clients each time", "Participant._on_roster",
           "self._within is not None and (not self._within.issuperset(clients))", "False",
           "test_a_sum_is_masked_with_one_roster_or_a_part_of_it"),
    Mutant("secure sums: the first roster forgotten", "SecureClient._contribute",
           "self._first[1] if self._first and self._first[0] == base else None", "None",
           "test_a_sum_is_masked_with_one_roster_or_a_part_of_it"),
    Mutant("secure sums: a round that cannot be opened waits for ever", "SecureServer._stuck",
           "len(left) < self.settings.threshold", "False",
           "test_a_round_that_can_not_be_opened_any_more_is_lost_and_no_other"),
    Mutant("contract: the file's terms are taken", "other_terms", "given[name] != value",
           "False", "test_other_terms_are_refused_in_words"),
    Mutant("contract: another adjacency is taken", "promised", "mechanism.adjacency", "''",
           "test_other_terms_are_refused_in_words"),
    Mutant("gossip: a neighbour's last weights are taken whole", "OwnReleases.take",
           "self.gossip.trust.admit(self.held, message.vector)", "message.vector",
           "test_one_hostile_neighbour_neither_sets_a_model_nor_ends_a_run"),
    Mutant("gossip: one neighbour's word ends a run", "AsynchronousWorker._believed",
           "min(2, len(near))", "1",
           "test_one_hostile_neighbour_neither_sets_a_model_nor_ends_a_run"),
    Mutant("decode: two forms of one message", "decode",
           "name == later and (not known[name])", "False",
           "test_a_message_has_one_form_where_its_later_field_is_empty"),
    Mutant("gossip: others' word ends a run at any time", "OwnReleases.near",
           "self.updates >= self._least", "True",
           "test_one_hostile_neighbour_neither_sets_a_model_nor_ends_a_run"),
    Mutant("gossip: more of one's releases are known without proof", "Endpoint._require_proof",
           "shown < claimed", "False", "test_a_claim_on_somebody_needs_that_ones_signature"),
    Mutant("gossip: anybody's signature is a proof", "proven",
           "_public(public_key).verify(signature, _CONTEXT + proof[:-SIGNATURE_BYTES])", "pass",
           "test_a_claim_on_somebody_needs_that_ones_signature"),
    Mutant("gossip: a count in another run is a proof", "proven",
           "(magic, version, its_run, sender, counts) != (MAGIC, VERSION, run, member, True)",
           "(magic, version, sender, counts) != (MAGIC, VERSION, member, True)",
           "test_a_claim_on_somebody_needs_that_ones_signature"),
    Mutant("federation: who left stays away", "ServerMachine._received",
           "able and self._begun_again(client, message)", "False",
           "test_who_left_and_begins_again_takes_part_from_there_on"),
    Mutant("federation: who left comes back behind masks", "ServerMachine._received",
           "self.federation.secure is None and (not self.finished)", "not self.finished",
           "test_who_left_stays_away_behind_masks"),
    Mutant("federation: a late word brings back who left", "ServerMachine._begun_again",
           "join.base < 0", "True",
           "test_who_left_and_begins_again_takes_part_from_there_on"),
    Mutant("federation: a late word of the process that left brings it back",
           "ServerMachine._begun_again", "join.life > ended", "join.life >= ended",
           "test_a_goodbye_that_comes_late_leaves_out_nobody_who_began_again"),
    Mutant("federation: a late goodbye leaves out who began again", "ServerMachine._received",
           "message.life and message.life < self._lives.get(client, 0)", "False",
           "test_a_goodbye_that_comes_late_leaves_out_nobody_who_began_again"),
    Mutant("federation: a snapshot forgets who of a client left", "ServerMachine._restore",
           "values.get('lives', [0] * len(left))", "[0] * len(left)",
           "test_a_goodbye_that_comes_late_leaves_out_nobody_who_began_again"),
    Mutant("federation: who has used its plan up comes back", "ServerMachine._received",
           "able and self._begun_again(client, message)", "self._begun_again(client, message)",
           "test_who_left_and_begins_again_takes_part_from_there_on"),
    Mutant("federation: an update's rounds begin elsewhere", "first_round",
           "each[-1] * (update - len(head))", "each[0] * (update - len(head))",
           "test_rounds_and_updates_are_counted_both_ways"),
    Mutant("phases: what was left out is made up", "ClientMachine._next",
           "max(due, federation.begins(federation.phase(self.base)))", "due",
           "test_a_phase_that_a_client_left_out_is_not_made_up"),
    Mutant("phases: rounds of a phase that is not one's own", "ClientMachine._next",
           "any((due in own for own in places))", "True",
           "test_a_phase_that_a_client_left_out_is_not_made_up"),
    Mutant("phases: rounds are left out backwards", "PrivateRounds.open",
           "index < due or (index > due and (not self.skips))",
           "index > due and (not self.skips)",
           "test_rounds_are_left_out_forwards_only_and_only_by_phases"),
    Mutant("phases: rounds are left out of any run", "PrivateRounds.open",
           "index > due and (not self.skips)", "False",
           "test_rounds_are_left_out_forwards_only_and_only_by_phases"),
    Mutant("phases: who left by results states what it released", "client_statement",
           "count = len(plan.mechanism)", "count = len(transcript or plan.mechanism)",
           "test_a_statement_counts_all_phases_that_were_agreed_on_and_says_what_was_released"),
    Mutant("phases: released outside of one's own", "_phase_notes", "within != len(transcript)",
           "False",
           "test_a_statement_counts_all_phases_that_were_agreed_on_and_says_what_was_released"),
    Mutant("phases: budgets add up to more than the whole", "in_phases",
           "spent > plan.budget.epsilon", "False",
           "test_phases_have_a_budget_of_their_own_or_share_one"),
    Mutant("phases: a budget for one record of a person", "alternatives.py::_solved",
           "plan.records_per_person", "1",
           "test_phases_keep_the_budget_for_all_records_of_a_person"),
    Mutant("phases: larger samples for one record of a person", "next_phase",
           "largest(total, budget, N, group)", "largest(total, budget, N, 1)",
           "test_phases_keep_the_budget_for_all_records_of_a_person"),
    Mutant("planning: a record of a person in every group", "PlanRequest.mechanism",
           "replace(part, groups=groups)", "part",
           "test_groups_bound_what_several_records_of_a_person_cost"),
    Mutant("training: a plan above its own budget", "require_within_budget",
           "spent > budget.epsilon * (1 + SLACK)", "False",
           "test_a_plan_above_its_own_budget_is_not_run"),
    Mutant("phases: a restart forgets the place", "ClientMachine.__init__",
           "updates_of(federation.local_rounds, ledger.rounds)", "self.updates",
           "test_who_was_away_goes_on_with_the_phase_that_the_others_are_in"),
    Mutant("secure sums: a sum that is no good is waited for", "SecureServer._opened",
           "self.version == current.round and (not begun)", "False",
           "test_nothing_is_violated_under_a_hostile_server"),
    Mutant("secure sums: rosters leave the first one's set, under a hostile server",
           "SecureClient._contribute", "self._first[1]", "None",
           "test_nothing_is_violated_under_a_hostile_server"),
    Mutant("secure sums: shares are revealed for a second list", "Participant._on_survivors",
           "if self.survivors: ...", "if False: ...",
           "test_nothing_is_violated_under_a_hostile_server"),
    Mutant("sizes: a round is not charged before it begins", "ClientLedger.begin",
           "self._allows.before(self._state, rounds)", "None",
           "test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else"),
    Mutant("sizes: a release is not charged", "Guard.after",
           "charged(self.plan, transcript)", "None",
           "test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else"),
    Mutant("sizes: another round than was begun is released", "Guard.after",
           "replace(last, count=1) != begun", "False",
           "test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else"),
    Mutant("sizes: released without having begun", "ClientLedger.commit", "not self._pending",
           "False", "test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else"),
    Mutant("sizes: begun twice", "ClientLedger.begin",
           "round != len(self._released) or (self._pending and self._pending != rounds)", "False",
           "test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else"),
    Mutant("sizes: a restart chooses anew", "ClientMachine.__init__",
           "(ledger.state, ledger.begun)", "(ledger.state, '')",
           "test_a_crash_at_any_write_loses_and_doubles_nothing"),
    Mutant("sizes: a round more than the filter allows", "Guard.next",
           "None if spent.would_exceed(chosen) else chosen", "chosen",
           "test_whatever_a_rule_chooses_the_budget_is_kept"),
    Mutant("sizes: earlier rounds cost nothing", "charged",
           "found.spend(transcript.mechanism(...))", "None",
           "test_whatever_a_rule_chooses_the_budget_is_kept"),
    Mutant("sizes: a rule sees more than the delay lets it", "Guard.next",
           "update - self.sizes.delay + 1", "update",
           "test_a_rule_sees_releases_up_to_the_delay_and_nothing_else"),
    Mutant("sizes: noise of one size for another", "PrivateRounds._about",
           "(chosen.origin, chosen.clip_norm, chosen.sampling, self.context)",
           "(chosen.origin, chosen.clip_norm, self.context)",
           "test_the_sum_is_divided_as_planned_whatever_the_size"),
    Mutant("sizes: stated as if fixed before", "client_statement",
           "accountant = kept.details()", "pass",
           "test_a_simulation_keeps_the_budget_and_its_statements_verify"),
    Mutant("delay: what never comes is waited for", "Delay.permits",
           "k >= i or bool(chosen(k, i))", "bool(chosen(k, i))", "test_a_delay_of_ones_own"),
    Mutant("refreshes: dealt in order of the batch", "PrivateSum.parts",
           "self.rounds._parts.at(self.round.index).integers(0, count, len(self.indices))",
           "np.arange(len(self.indices)) * count // len(self.indices)",
           "test_a_record_more_changes_its_own_term_and_no_other"),
    Mutant("refreshes: when a part begins follows from how long one takes",
           "ClientMachine.part_at", "self._begun + ...",
           "self._now + federation.cadence / (federation.refreshes + 1)",
           "test_each_part_begins_at_its_time_on_the_newest_model"),
    Mutant("refreshes: a model that comes at the time of a part is met", "ClientMachine.handle",
           "self._now >= at", "self._now > at",
           "test_each_part_begins_at_its_time_on_the_newest_model"),
    Mutant("refreshes: without a cadence", "Federation._check_refreshes",
           "self.rule == 'synchronous' or self.cadence is None", "self.rule == 'synchronous'",
           "test_refreshes_need_a_cadence_single_records_and_the_clients_own_word"),
    Mutant("refreshes: a part that comes out of order is taken", "ClientTrainer.compute_part",
           "total is None or part != len(self._met)", "total is None",
           "test_parts_on_one_model_are_the_whole"),
    Mutant("federation: a mean's bits depend on who came first", "WeightedMean._taken",
           "sorted(self._held)", "self._held",
           "test_whoever_comes_first_the_bits_are_the_same"),
    Mutant("federation: a server that was set back is waited for", "ClientMachine._old",
           "self._now - self._older[1] < OLDER_SECONDS", "True",
           "test_a_server_restored_from_a_backup_ends_clients_with_a_line_within_a_minute"),
    Mutant("federation: any older model is a server that was set back", "ClientMachine._old",
           "self._now - self._older[1] < OLDER_SECONDS", "False",
           "test_a_few_older_models_are_messages_out_of_order"),
    Mutant("federation: a release is given up for a model from the future",
           "ClientMachine._answered", "answer.reason == 'future'", "False",
           "test_a_server_restored_from_a_backup_ends_clients_with_a_line_within_a_minute"),
    Mutant("secure sums: a clip norm that moves where rounds are missed", "require_steady",
           "plan.clip.final is not None", "False",
           "test_what_secure_aggregation_does_not_go_with_is_refused"),
    Mutant("secure sums: a clip norm of each client's own", "SecureAggregation.require",
           "plan.clip.rule == 'quantile'", "False",
           "test_what_secure_aggregation_does_not_go_with_is_refused"),
    Mutant("secure sums: false shares are believed", "opened",
           "right(secret := combine(rest, threshold))", "(secret := combine(rest, threshold))",
           "test_one_liar_of_five_stops_nobody_and_is_named"),
    Mutant("secure sums: who is blamed by many is asked again", "SecureServer._excluded",
           "times > least", "False", "test_one_liar_of_five_stops_nobody_and_is_named"),
    Mutant("fused: the noise of one client for all", "Cohort.result",
           "len(one.clients) * (one.factor * one.chosen.noise_std) ** 2",
           "(one.factor * one.chosen.noise_std) ** 2 / len(parts)",
           "test_its_noise_has_the_covariance_of_all_clients_noises_together"),
    Mutant("fused: noises added up as if they were one another's", "Cohort.result",
           "math.sqrt(math.fsum(... for one in parts))",
           "math.fsum(len(one.clients) * one.factor * one.chosen.noise_std for one in parts)",
           "test_its_noise_has_the_covariance_of_all_clients_noises_together"),
    Mutant("fused: one client's noise is left out", "Cohort.result",
           "math.sqrt(math.fsum(... for one in parts))",
           "math.sqrt(math.fsum((o.factor * o.chosen.noise_std) ** 2 for o in parts[1:]))",
           "test_its_noise_has_the_covariance_of_all_clients_noises_together"),
    Mutant("fused: one client's records are left out", "Cohort.result",
           "self.summed(work.round, work.weights, parts)",
           "self.summed(work.round, work.weights, parts[1:])",
           "test_without_noise_it_is_the_weighted_mean_of_its_clients"),
    Mutant("fused: noise that its sum does not move", "Cohort.result",
           "self._noise.bind(about, vector)", "self._noise.bind(about, 0 * vector.abs())",
           "test_another_sum_has_another_noise_and_the_same_sum_the_same"),
    Mutant("fused: clients of other weight count the same", "Cohort.parts",
           "weight / whole", "1 / len(clients)",
           "test_without_noise_it_is_the_weighted_mean_of_its_clients"),
    Mutant("fused: a step of another client's records", "Cohort.drawn",
           "self._joined.starts[members] - (ends - self._sizes[members])",
           "np.zeros(len(members), dtype=np.int64)",
           "test_poisson_batches_hold_every_record_by_its_own_rate_and_independently"),
    Mutant("fused: any simulation's record goes on", "Recorded.__init__",
           "(folder / other).exists()", "False",
           "test_an_interrupted_one_goes_on_to_the_same_bits "
           "test_one_that_was_begun_without_goes_on_without"),
    Mutant("fused: a deadline that nobody keeps", "require_fusible",
           "getattr(federation, name)", "False",
           "test_another_law_is_refused_with_what_to_set"),
    Mutant("fused: a step with momentum is linear", "_linear", "not any(...)", "True",
           "test_another_law_is_refused_with_what_to_set"),
    Mutant("several holders: the last choice counts", "_choices",
           "dict.fromkeys(combinations(pool, holders))", "list(combinations(pool, holders))[-1:]",
           "test_the_worst_choice_of_holders_counts_wherever_it_stands"),
    Mutant("several holders: one record of a person at each", "statement.py::shared",
           "plan.records_per_person", "1",
           "test_a_person_at_several_clients_counts_with_all_records_at_each"),
    Mutant("samplings: sampled turns hide nothing", "CyclicPoisson.hides", "self.rate < 1", "False",
           "test_statements_say_that_rounds_have_no_guarantee_of_their_own"),
    Mutant("strong adversary: what is cut is not disclosed", "StrongAdversary.tradeoff",
           "weights * (1 - self.hits.missing)", "weights",
           "test_what_is_cut_from_the_hits_counts_as_disclosed"),
    Mutant("grid: half the noise on a coarser one", "reaching_grid",
           "-(-scale // 2)", "-(-scale // 4)",
           "test_a_coarser_grid_covers_it_too_and_is_no_coarser_than_it_must_be"),
    Mutant("statistics: a record moves an entry by one", "Statistic.entry",
           "math.ceil(self.reach('zero-out'))", "1",
           "test_a_record_moves_a_tally_by_its_reach_and_no_further"),
    Mutant("secure aggregation: the grid takes nothing of δ", "secure_interval",
           "delta * math.exp(-divergence) * _INWARD", "delta",
           "test_the_divergence_of_the_grid_takes_its_share_of_delta"),
    Mutant("filter: a cost rounded inward", "GaussianFilter.costs",
           "2 * renyi.zcdp(mechanism) * _ROUNDING", "2 * renyi.zcdp(mechanism) / _ROUNDING",
           "test_what_is_charged_is_at_least_what_rounds_cost"),
    Mutant("noise: the last ten numbers are the first ten's", "GaussianNoise.add_to",
           "generator.standard_normal(...)",
           "[generator.standard_normal(...), buffer.put(range(length - 10, length), buffer[:10])]",
           "test_no_two_coordinates_have_one_number"),
    Mutant("one run: equal scores know their coins", "right_guesses",
           "np.random.default_rng(0).permutation(games.count)", "np.arange(games.count)",
           "test_equal_scores_tell_nothing_of_their_coins"),
    Mutant("one run: nobody guesses wrong", "one_run_p_value", "np.maximum(aside, wrong[place])",
           "aside", "test_the_bound_is_the_largest_chance_that_the_theorem_allows"),
    Mutant("replay: nothing is shown", "PrivateRounds._finish",
           "self.witness.released(noised)", "None",
           "test_sound_runs_agree_with_the_reference[poisson]"),
    Mutant("replay: whatever is off is allowed", "ComparedRound.violated",
           "not self.off <= 1", "False",
           "test_a_batch_that_is_not_the_laws_is_named"),
    Mutant("replay: the batch as the trainer says", "_Witness._compare",
           "np.array_equal(batch, seen)", "True",
           "test_a_batch_that_is_not_the_laws_is_named"),
    Mutant("replay: coordinates are not looked at", "apart",
           "np.abs(gap) / (half + found.reach + found.shorter)", "0.0 * gap",
           "test_a_sum_may_be_off_by_half_the_charge_along_every_way"),
    Mutant("replay: contributions are not looked at", "apart", "moved / up", "0.0 * moved",
           "test_a_sum_may_be_off_by_half_the_charge_along_every_way"),
    Mutant("replay: what is missing is not looked at", "apart", "-moved / down", "0.0 * moved",
           "test_a_sum_may_be_off_by_half_the_charge_along_every_way"),
    Mutant("replay: examples are in front", "reference.py::_Look.__init__", "part.dims", "None",
           "test_other_ways_to_train_are_replayed[batch_dims]"),
    Mutant("replay: noise within a thousandth", "_Witness._noises", "4 * UNIT", "2.0**-10",
           "test_a_planted_fault_is_refuted"),
    Mutant("replay: the norm that the count leads to", "_Witness._noises",
           "2.0**-40 * wanted", "1e9 * wanted", "test_a_planted_fault_is_refuted"),
    Mutant("replay: no looks aside", "reference.py::summed",
           "[look(own, seed) for look in looks]", "[looks[0](own, seed) for look in looks]",
           "test_a_kink_within_rounding_is_no_fault"),
    Mutant("reference: contributions 2 % longer", "reference.py::clip", "min(1.0, bound / norm)",
           "min(1.0, 1.02 * bound / norm)", "test_sound_runs_agree_with_the_reference[poisson]"),
    Mutant("reference: noise of the round before", "Reference.numbers",
           "int.from_bytes(bound[:12], 'little') << 32", "0",
           "test_sound_runs_agree_with_the_reference[poisson]"),
    Mutant("reach: beyond the limit in silence", "ExternalState.__init__",
           "len(self._seen) > LIMIT", "False",
           "test_more_objects_than_can_be_noted_are_refused"),
    Mutant("reach: what is not understood let pass", "ExternalState._note",
           "strict and (not _of_a_library(value))", "False",
           "test_state[schedule_of_an_iterator]"),
    Mutant("reach: queues waited for", "_Attempt._survey", "if found.waits: ...",
           "if False: ...", "test_state[queue_of_numbers]"),
    Mutant("reach: modules beside a script", "ExternalState._note", "of_user(value.__name__)",
           "False", "test_state[class_in_a_module_beside_the_script]"),
    Mutant("reach: globals by their names", "ExternalState._function",
           "not words.isdisjoint(_OF_ITS_MODULE)", "False", "test_state[global_by_its_name]"),
    Mutant("reach: numbers in a row", "_row", "value[:] = kept", "pass",
           "test_state[number_in_a_view_of_memory]"),
    Mutant("reach: slots", "_give_back_slot", "now is not kept", "False",
           "test_state[number_in_a_slot_that_was_empty]"),
    Mutant("reach: gradients", "_give_back_gradient", "value.grad is not kept", "False",
           "test_state[number_in_a_gradient]"),
    Mutant("reach: settings", "_settings", "get() != kept", "False",
           "test_state[threads_of_torch]"),
    Mutant("reach: operators made with a library", "Alone.__torch_function__",
           "boundary.unseen_kernel(operator)", "False",
           "test_backward[operator_of_a_library_that_remembers]"),
    Mutant("reach: a mode below the transforms", "VmapMode.__torch_function__",
           "boundary.dispatched()", "False", "test_backward[mode_of_dispatch_inside]"),
    Mutant("reach: a mode around a pass", "require_bare_torch", "dispatched() or modes", "False",
           "test_a_mode_around_a_pass_is_refused"),
    Mutant("reach: a kernel of torch's replaced", "_replaced", "_KERNEL.fullmatch(key)", "False",
           "test_a_kernel_in_the_place_of_one_of_torchs_is_refused"),
    Mutant("book: more than the budget", "Store.reserve",
           "not rule.fits(sum_of(rule, after, part))", "False",
           "test_a_budget_is_spent_to_its_end_and_not_beyond[sqlite]"),
    Mutant("book: a charge that is not added", "Store.reserve",
           "_put(turn, data, part, sums=canonical(after[part]))", "pass",
           "test_a_budget_is_spent_to_its_end_and_not_beyond[sqlite]"),
    Mutant("book: a part that does not count", "sum_of", "rule.total(whole, own)", "whole",
           "test_parts_that_are_disjoint_count_once[sqlite]"),
    Mutant("book: a person in two parts", "Store._register", "row.part != part", "False",
           "test_parts_that_are_disjoint_count_once[sqlite]"),
    Mutant("book: a call that is charged twice", "Store._write", "looked and ...", "False",
           "test_the_same_call_again_changes_nothing[sqlite]"),
    Mutant("book: a settlement that leaves the sums", "Store._change",
           "_put(turn, data, part, sums=canonical(sums[part]))", "pass",
           "test_a_reservation_lives[sqlite]"),
    Mutant("book: an account without an end", "Account.require_going",
           "self.until is not None and at[:10] > self.until", "False",
           "test_an_account_ends[sqlite]"),
    Mutant("book: an account that another machine's clock ends", "Store.reserve",
           "_text(now())", "turn.at", "test_a_wrong_clock_elsewhere_ends_no_account[sqlite]"),
    Mutant("book: an honest entry with the date of the one before", "BookState._reserve",
           "made.at == self.at", "False",
           "test_a_wrong_clock_elsewhere_ends_no_account[sqlite]"),
    Mutant("book: a reservation after the account's end", "BookState._reserve",
           "made.at == self.at", "True", "test_an_export_that_cannot_be_is_found"),
    Mutant("book: a clock that goes back", "_moment", "(here := _text(clock)) >= before",
           "(here := _text(clock))", "test_a_clock_that_goes_back_moves_no_entry[sqlite]"),
    Mutant("book: whoever wants may", "Store._write", "self.role not in may", "False",
           "test_who_may_what[sqlite]"),
    Mutant("book: another analyst's reservation", "Store._change",
           "self.role == 'analyst' and row.actor != self.actor", "False",
           "test_who_may_what[sqlite]"),
    Mutant("book: a token that was revoked", "Store.holder", "row is None or row.revoked",
           "row is None", "test_tokens_open_until_they_are_revoked[sqlite]"),
    Mutant("book: two runs of one reservation", "begun", "held.run not in (None, run)", "False",
           "test_lives_that_cannot_be[sqlite]"),
    Mutant("book: a mark that falls", "marked", "max(held.mark, rounds_of(held, rounds))",
           "rounds_of(held, rounds)", "test_lives_that_cannot_be[sqlite]"),
    Mutant("book: a decision below the mark", "ended", "rounds_of(held, rounds) < held.mark",
           "False", "test_lives_that_cannot_be[sqlite]"),
    Mutant("book: rounds of a reservation that is over", "_active", "held.status != 'active'",
           "False", "test_lives_that_cannot_be[sqlite]"),
    Mutant("chain: an entry that was changed", "_broken",
           "entry.hash != _hash(number, entry.kind, entry.values, entry.previous)", "False",
           "test_an_export_that_was_edited_is_found"),
    Mutant("chain: an entry that is left out", "_broken",
           "entry.previous != (before.hash if before else '')", "False",
           "test_an_entry_that_is_left_out_between_others_is_found"),
    Mutant("chain: a book that was set back", "ledger/chain.py::play",
           "seen or entry.hash == head", "True",
           "test_a_book_that_was_set_back_is_found_by_its_head[sqlite]"),
    Mutant("chain: a signature of nobody", "ledger/chain.py::play",
           "key is None or signed_by(...)", "True",
           "test_a_signature_cannot_be_forged_or_left_out"),
    Mutant("chain: a charge below its costs", "BookState._reserve",
           "not covers(costs, rule.costs(made.charge))", "False",
           "test_an_export_that_cannot_be_is_found[a_charge_that_costs_less]"),
    Mutant("chain: a reservation beyond the budget", "BookState._reserve",
           "rule.fits(sum_of(rule, self.sums[made.data], made.charge.partition))", "True",
           "test_an_export_that_cannot_be_is_found[more_than_the_budget]"),
    Mutant("chain: more is returned than was not released", "BookState._live",
           "not covers(costs, rule.costs(held.charge, rounds))", "False",
           "test_an_export_that_cannot_be_is_found[a_settlement_that_returns_too_much]"),
    Mutant("chain: tables that say something else", "_differing",
           "found ^ expected", "set()",
           "test_an_edit_is_found[sqlite-sums]"),
    Mutant("chain: other persons", "_other_persons",
           "found.get(entry, ()) != state.registered.get(entry, ())", "False",
           "test_an_edit_is_found[sqlite-a_person_in_another_part]"),
]  # fmt: skip

# Where a row's piece is.


_LOOSE = ("ctx", "type_comment", "kind")
Holes = list[list[ast.AST]]


def _is_hole(node: object) -> bool:
    inside = node.value if isinstance(node, ast.Expr) else node
    return isinstance(inside, ast.Constant) and inside.value is ...


def _parts(node: ast.AST) -> Iterator[object]:
    """What a node is made of; a call's arguments are one list."""
    if isinstance(node, ast.Call):
        yield from (node.func, [*node.args, *node.keywords])
    else:
        yield from (getattr(node, name) for name in node._fields if name not in _LOOSE)


def _same(pattern: object, found: object, holes: Holes) -> bool:
    """Whether a piece of syntax has this structure; what ``...`` stands for goes to ``holes``."""
    if isinstance(pattern, list):
        if not isinstance(found, list):
            return False
        at = next((i for i, one in enumerate(pattern) if _is_hole(one)), None)
        if at is None:
            return len(pattern) == len(found) and all(
                _same(*pair, holes) for pair in zip(pattern, found, strict=True)
            )
        end = len(found) - (len(pattern) - at - 1)
        if end < at or not _same(pattern[:at], found[:at], holes):
            return False
        holes.append(found[at:end])
        return _same(pattern[at + 1 :], found[end:], holes)
    if isinstance(pattern, ast.Assign) and isinstance(found, ast.keyword):  # name=value
        target = pattern.targets[0]
        named = isinstance(target, ast.Name) and target.id == found.arg
        named = named and len(pattern.targets) == 1
        return named and _same(pattern.value, found.value, holes)
    if isinstance(pattern, ast.AST) and isinstance(found, ast.AST):
        if _is_hole(pattern) and isinstance(found, ast.expr):
            holes.append([found])
            return True
        return type(pattern) is type(found) and all(
            _same(*pair, holes) for pair in zip(_parts(pattern), _parts(found), strict=True)
        )
    return type(pattern) is type(found) and pattern == found


def _filled(new: Any, holes: Holes) -> Any:
    """``new`` with what its holes stand for, in their order."""
    if isinstance(new, list):
        return [
            one
            for part in new
            for one in (holes.pop(0) if _is_hole(part) else [_filled(part, holes)])
        ]
    if not isinstance(new, ast.AST):
        return new
    if _is_hole(new):
        return holes.pop(0)[0]
    for name in new._fields:
        setattr(new, name, _filled(getattr(new, name, None), holes))
    if isinstance(new, ast.Call):
        everything = [*new.args, *new.keywords]
        new.args = [one for one in everything if not isinstance(one, ast.keyword)]
        new.keywords = [one for one in everything if isinstance(one, ast.keyword)]
    return new


def _parsed(text: str) -> ast.AST:
    """An expression where the text is one, else a statement."""
    [statement] = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _definitions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """(qualified name, definition) of every function and class, and of those inside classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{prefix}{node.name}.")


def _places(
    tree: ast.Module, qualified: str, pattern: ast.AST
) -> Iterator[tuple[ast.AST, str, int, Holes]]:
    """(parent, field, number in its list, what ``...`` stands for) of everything that matches."""
    inside = [definition for name, definition in _definitions(tree.body) if name == qualified]
    for parent in itertools.chain.from_iterable(map(ast.walk, inside)):
        for name, value in ast.iter_fields(parent):
            for at, node in enumerate(value if isinstance(value, list) else [value]):
                holes: Holes = []
                if _same(pattern, node, holes):
                    yield parent, name, at, holes


@dataclass(frozen=True)
class Place:
    """A mutant that has found its place: the file as it is, and as it becomes."""

    file: Path
    tree: ast.Module
    changed: ast.Module


@dataclass
class Sources:
    """The files of a package, by the names that they define."""

    folder: Path

    @functools.cached_property
    def _texts(self) -> dict[Path, str]:
        return {path: path.read_text("utf-8") for path in sorted(self.folder.rglob("*.py"))}

    @functools.cached_property
    def _defining(self) -> dict[str, list[Path]]:
        found = defaultdict(list)
        for path, text in self._texts.items():
            for name in set(re.findall(r"\b(?:def|class) (\w+)", text)):
                found[name].append(path)
        return found

    def find(self, row: Mutant) -> Place:
        """Where the row's piece is: once in the functions of that name."""
        end, _, qualified = row.where.rpartition("::")
        holders = [
            path
            for path in self._defining.get(qualified.rpartition(".")[2], ())
            if f"/{path.as_posix()}".endswith(f"/{end}" if end else "")
            and any(name == qualified for name, _ in _definitions(self._tree(path).body))
        ]
        found = []
        for path in holders:
            tree = ast.parse(self._texts[path])
            pattern, new = _parsed(row.piece), _parsed(row.changed)
            if isinstance(pattern, ast.expr) and isinstance(new, ast.stmt):
                pattern = ast.Expr(pattern)
            found += [
                (path, tree, *place, _filled(new, holes))
                for *place, holes in _places(tree, qualified, pattern)
            ]
        if len(found) != 1:
            names = ", ".join(str(path.relative_to(self.folder)) for path in holders) or "no file"
            raise UnboundError(
                f"{row.piece!r} is {len(found)} times in {row.where} ({names}), not once"
            )
        [(path, tree, parent, field_, at, new)] = found
        value = getattr(parent, field_)
        if isinstance(value, list):
            value[at] = _fitted(value[at], new)
        else:
            setattr(parent, field_, _fitted(value, new))
        return Place(path, self._tree(path), ast.fix_missing_locations(tree))

    def forget(self) -> None:
        """The trees of the files, until one is asked for again."""
        self._trees.clear()

    @functools.cached_property
    def _trees(self) -> dict[Path, ast.Module]:
        return {}

    def _tree(self, path: Path) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self._texts[path])
        return self._trees[path]


def _fitted(node: ast.AST, new: ast.AST) -> ast.AST:
    """What takes the place of ``node``: a statement stays one, a keyword argument too."""
    if isinstance(node, ast.keyword):
        if not isinstance(new, ast.Assign):
            raise UnboundError(f"{ast.unparse(node)} is a keyword argument: replace it by another")
        return ast.keyword(arg=ast.unparse(new.targets[0]), value=new.value)
    return ast.Expr(new) if isinstance(node, ast.stmt) and isinstance(new, ast.expr) else new


# How a mutant takes its place in a process.


def _codes(tree: ast.Module, file: Path) -> dict[str, list[CodeType]]:
    """The code of every function by its qualified name, in the order of the file."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    todo = [compile(tree, str(file), "exec", dont_inherit=True)]
    while todo:
        code = todo.pop(0)
        found[code.co_qualname].append(code)
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]
    return found


def _own(code: CodeType) -> tuple[object, ...]:
    """What a piece of code does itself, without the functions inside it."""
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, code.co_names, constants


def _walked() -> tuple[dict[str, list[FunctionType]], list[Any]]:
    """The package's functions by their files, and its caches."""
    functions: dict[str, list[FunctionType]] = defaultdict(list)
    caches: list[Any] = []
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(str(SOURCE)):
            functions[one.__code__.co_filename].append(one)
        elif type(one) is functools._lru_cache_wrapper and one.__module__.startswith(PACKAGE):
            caches.append(one)
    return functions, caches


# The same once for all forks, which need not walk through, and so copy, everything.
_there = functools.cache(_walked)


def install(place: Place) -> None:
    """Put the changed functions where the original ones are, in this process."""
    before, after = _codes(place.tree, place.file), _codes(place.changed, place.file)
    swaps = {}
    for name, codes in before.items():
        if len(codes) == len(after.get(name, ())):
            for old, new in zip(codes, after[name], strict=True):
                if not old.co_flags & inspect.CO_OPTIMIZED and _own(old) != _own(new):
                    raise UnboundError("what runs at import cannot be changed: name a function")
                if old != new:
                    swaps[name, old.co_firstlineno] = new
    module = ".".join(place.file.relative_to(SOURCE.parent).with_suffix("").parts)
    if module in sys.modules:
        functions, caches = _there()
    else:
        importlib.import_module(module)
        gc.unfreeze()
        functions, caches = _walked()
    for one in functions[str(place.file)]:
        key = one.__code__.co_qualname, one.__code__.co_firstlineno
        one.__code__ = swaps.get(key, one.__code__)
    for cache in caches:
        cache.cache_clear()


# The tests.


def names_of(tests: str) -> list[str]:
    """Names between spaces; a case in brackets may hold spaces."""
    return re.findall(r"[^\s\[]+(?:\[[^\]]*\])?", tests)


@functools.cache
def _tests() -> dict[Path, set[str]]:
    """The names of the functions in every file of tests."""
    return {
        path: set(re.findall(r"def (test_\w+)\(", path.read_text("utf-8")))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
    }


def files_with(names: Iterable[str]) -> list[Path]:
    """The files of tests that define a test of one of these names."""
    wanted = [(place, last.partition("[")[0]) for place, _, last in map(_split, names)]
    return [
        path
        for path, functions in _tests().items()
        if any(last in functions and place in path.as_posix() for place, last in wanted)
    ]


def _split(name: str) -> tuple[str, str, str]:
    return name.rpartition("::")


def chosen(row: Mutant, items: list[pytest.Item]) -> list[pytest.Item]:
    """The row's tests, in its order."""
    found: list[pytest.Item] = []
    for name in names_of(row.tests):
        place, _, last = name.rpartition("::")
        its = [
            item
            for item in items
            if place in item.path.as_posix()
            and last in (item.name, getattr(item, "originalname", None))
        ]
        if not its:
            raise UnboundError(f"no test is called {name}")
        found += its
    return found


@dataclass
class Verdict:
    """What became of a mutant: nothing failed, or this test."""

    row: Mutant
    sources: Sources | None
    seconds: float
    failed: str = ""
    wrong: str = ""

    @property
    def good(self) -> bool:
        """A test failed just where something was changed."""
        return not self.wrong and bool(self.failed) == (self.sources is not None)


@dataclass(eq=False)
class Trials:
    """A pytest plugin: runs each row's tests in a fork, in place of the collected tests."""

    rows: Sequence[tuple[Mutant, Sources | None]]
    choose: Callable[[Mutant, list[pytest.Item]], list[pytest.Item]] = chosen
    verdicts: list[Verdict] = field(default_factory=list)
    _failed: str = ""
    _wrong: str = ""

    def pytest_collection(self) -> None:
        """The same examples in every run, none of them stored, none made smaller."""
        settings.register_profile(
            "mutants",
            settings.get_profile("any machine"),
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutants")

    def pytest_exception_interact(self, call: pytest.CallInfo[object]) -> None:
        if call.excinfo is not None and call.excinfo.errisinstance(NameError):
            self._wrong = f"the changed piece cannot run: {call.excinfo.value}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("tests cannot be collected")
        # What a fork's collections walk through, it copies.
        gc.collect()
        _there()
        gc.freeze()
        with tempfile.TemporaryDirectory() as folder:
            self.verdicts += self._all(session.items, Path(folder))
        return True

    def _all(self, items: list[pytest.Item], folder: Path) -> Iterator[Verdict]:
        todo = list(enumerate(self.rows))[::-1]
        if math.isfinite(END):
            random.shuffle(todo)  # so that what there is no time for is not always the same
        running: dict[int, tuple[int, float]] = {}
        while todo or running:
            if time.time() > END:
                todo.clear()
            while todo and len(running) < (os.cpu_count() or 2):
                number, (row, sources) = todo.pop()
                pid = os.fork()
                if not pid:
                    self._run(row, sources, items, folder / str(number))
                running[pid] = number, time.monotonic()
            time.sleep(0.01)
            for pid, (number, begun) in list(running.items()):
                seconds = time.monotonic() - begun
                late = seconds > PATIENCE
                if not late and not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
                with contextlib.suppress(ProcessLookupError):  # and what its tests have started
                    os.killpg(pid, signal.SIGKILL)
                if late:
                    os.waitpid(pid, 0)
                    said = {"failed": f"nothing within {PATIENCE} s"}
                else:
                    told = folder / str(number) / "verdict"
                    said = {"wrong": "the process of its tests died"}
                    said = json.loads(told.read_text("utf-8")) if told.exists() else said
                del running[pid]
                verdict = Verdict(*self.rows[number], seconds, **said)
                print(said_of(verdict), flush=True)
                yield verdict

    def _run(
        self, row: Mutant, sources: Sources | None, items: list[pytest.Item], folder: Path
    ) -> NoReturn:
        """One row in a process of its own, which ends here."""
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            folder.mkdir()
            os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
            tempfile.tempdir = None
            try:
                if sources is not None:
                    install(sources.find(row))
                its = self.choose(row, items)
                for item, after in itertools.zip_longest(its, its[1:]):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    if self._failed:
                        break
            except UnboundError as reason:
                self._wrong = str(reason)
            except Exception:
                self._wrong = traceback.format_exc()
            told = {"failed": self._failed, "wrong": self._wrong}
            (folder / "verdict").write_text(json.dumps(told), "utf-8")
        finally:
            os._exit(0)


def said_of(verdict: Verdict) -> str:
    """One line: the mutant, how long it lived, and which test has killed it."""
    state = "WRONG  " if not verdict.good else "killed " if verdict.sources else "passed "
    why = verdict.wrong or verdict.failed or f"nothing fails of {verdict.row.tests}"
    return f"{state}{verdict.seconds:6.1f} s  {verdict.row.name}: {why}"


def bound(
    rows: Iterable[Mutant], words: Iterable[str] = ()
) -> tuple[list[tuple[Mutant, Sources | None]], list[str]]:
    """The rows that have a place, where it is, and what is wrong with those without, or no tests.

    The place itself is found again where it is needed: two trees of a file for each row would be
    copied by every fork.
    """
    sources, found, wrong = Sources(SOURCE), [], []
    for row in rows:
        if all(word in row.name for word in words):
            try:
                sources.find(row)
                found.append((row, sources))
            except UnboundError as reason:
                wrong.append(f"UNBOUND {row.name}: {reason}")
    sources.forget()
    names = {name for row, _ in found for name in names_of(row.tests)}
    wrong += [f"UNBOUND no test is called {name}" for name in names if not files_with([name])]
    return found, wrong


def tried(rows: Sequence[tuple[Mutant, Sources | None]]) -> list[Verdict]:
    """Every row with the tests that it names."""
    files = files_with({name for row, _ in rows for name in names_of(row.tests)})
    trials = Trials(rows)
    sys.path.insert(0, str(SOURCE.parent))
    os.environ.update(PYTHONPATH=str(SOURCE.parent), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    options = ["-qq", "-s", "--disable-warnings", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    pytest.main([*options, *map(str, files)], plugins=[trials])
    return trials.verdicts


def main() -> None:
    """One line for each mutant; status 1 where one lives or has no place."""
    parser = argparse.ArgumentParser(description="Change one piece at a time, and see a test die.")
    parser.add_argument("words", nargs="*", help="only mutants with these words in their names")
    parser.add_argument("--bound", action="store_true", help="look for places and tests only")
    parser.add_argument("--untouched", action="store_true", help="the same tests without a change")
    given = parser.parse_args()
    rows, wrong = bound(MUTANTS, given.words)
    if not given.bound:
        if given.untouched:
            suites = {row.tests: (replace(row, name="untouched"), None) for row, _ in rows}
            rows = [*suites.values(), *rows]
        verdicts = tried(rows)
        wrong += [said_of(verdict) for verdict in verdicts if not verdict.good]
        if len(verdicts) < len(rows):
            short = f"only {len(verdicts)} of {len(rows)} rows were tried"
            if time.time() > END:
                print(f"{short}: the time of .ci/run is over")
            else:
                wrong.append(short)
    print(*wrong, f"{len(rows)} rows, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

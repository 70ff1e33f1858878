"""What the tests need to have imported before the first of them."""

# pytester forgets the modules that a run inside this process was the first to import. This one
# registers operators, which can be done only once, and comes with the first optimizer.
import gc
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401
from hypothesis import HealthCheck, settings

from trainguard.core import notebook
from trainguard.observe.loop.counterfactual import forking

# How long an example takes is a matter of the machine, and of what else it does.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What is run by `nox -s slow`, so that `nox -s tests` keeps within a quarter of an hour.
SLOW = (
    "tests/authors/",
    "tests/command/test_init.py::test_a_guard",
    "tests/command/compare/test_command.py",
    "tests/command/compare/test_multimodal.py",
    "tests/command/diagnose/test_long_output.py",
    "tests/command/memory/test_page.py",
    "tests/command/run/test_as_python.py",
    "tests/command/run/test_baseline.py::test_a_",
    "tests/command/run/test_baseline.py::test_several",
    "tests/command/run/test_baseline.py::test_what_is_known",
    "tests/command/run/test_exit.py::test_a_group_of_exceptions",
    "tests/command/run/test_exit.py::test_a_script_that_exits",
    "tests/command/run/test_exit.py::test_a_script_that_raises",
    "tests/command/run/test_exit.py::test_a_script_with_a_hook",
    "tests/command/run/test_exit.py::test_a_thread_that_goes_on",
    "tests/command/run/test_exit.py::test_findings_of_a_script_that_fails",
    "tests/command/run/test_exit.py::test_nothing_found",
    "tests/command/run/test_live.py::test_a_fault_of_the_beginning",
    "tests/command/run/test_live.py::test_excuses",
    "tests/command/run/test_no_account.py::test_a_",
    "tests/command/run/test_no_account.py::test_another",
    "tests/command/run/test_no_account.py::test_leaving_at_once_is_no_pass[7-7]",
    "tests/command/run/test_output.py::test_all_is_plain",
    "tests/command/run/test_output.py::test_a_reader_that_leaves",
    "tests/command/run/test_output.py::test_a_script_that_closes_stdout",
    "tests/command/run/test_output.py::test_a_script_that_replaces_stdout",
    "tests/command/run/test_output.py::test_binary",
    "tests/command/run/test_output.py::test_much",
    "tests/command/run/test_output.py::test_nobody_listens",
    "tests/command/run/test_processes.py",
    "tests/command/run/test_processes.py::test_processes_that_torch_spawns",
    "tests/command/run/test_ranks.py",
    "tests/command/run/test_terminal.py",
    "tests/command/run/test_timeout.py",
    "tests/command/run/test_torch.py::test_an_ensemble",
    "tests/command/run/test_output.py::test_a_pass_that_nobody_can_read[words0",
    "tests/command/run/test_what_if.py::test_what_is_given_up",
    "tests/command/run/test_what_if.py::test_what_is_logged_is_logged_once[TensorBoard",
    "tests/command/test_init.py::test_what_cannot_be_guarded[failing",
    "tests/command/test_init.py::test_what_cannot_be_guarded[idle",
    "tests/faults/",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[averaged",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[compiled",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[engine",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[keras",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[lightning",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[mnist",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[nanogpt",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[sharded",
    "tests/frameworks/test_frameworks.py::test_a_framework_is_recorded_and_passes[trainer",
    "tests/frameworks/test_frameworks.py::test_a_defect",
    "tests/frameworks/test_frameworks.py::test_sharded_models",
    "tests/frameworks/test_frameworks.py::test_two_replicas",
    "tests/frameworks/test_notebook.py",
    "tests/judging/test_live.py::test_a_healthy_beginning[guard_a",
    "tests/observe/loop/counterfactual/test_asking.py::test_a_question_that_fails",
    "tests/observe/loop/counterfactual/test_deputy.py::test_however_a_run_ends",
    "tests/observe/loop/counterfactual/test_order.py::test_places_that_do_not_matter",
    "tests/observe/loop/counterfactual/test_order.py::test_when_the_order_says_nothing",
    "tests/observe/loop/test_curves.py::test_several_seeds",
    "tests/observe/loop/test_faults.py::test_a_method_that_fails_does_no_harm",
    "tests/observe/loop/test_observer.py::test_a_loop_is_begun_in_a_new_process",
    "tests/observe/loop/test_observer.py::test_a_loop_whose_module",
    "tests/observe/loop/test_training_thread.py::test_threads_that_train_at_once",
    "tests/observe/loop/watch/gradients/test_gradient_reads.py::test_a_long_run_is_looked_at",
    "tests/observe/loop/watch/runs/test_time_memory.py::test_the_peak_is_that_of_this_process",
    "tests/observe/memory/test_growth",
    "tests/observe/memory/test_run_steps.py",
    "tests/observe/parallel/test_observer.py::test_processes_that_are_started",
    "tests/observe/parallel/test_observer.py::test_ranks_that_hang",
    "tests/observe/tools/test_child_process.py::test_a_step_is_predicted_whatever_came_before",
    "tests/pytest_plugin/test_budget_fixture.py::test_with_workers",
    "tests/pytest_plugin/test_curve_pictures.py",
    "tests/pytest_plugin/test_hypothesis_seed.py::test_a_random_seed",
    "tests/pytest_plugin/test_record_fixture.py::test_with_workers",
    "tests/pytest_plugin/test_record_fixture.py::test_the_settings_of_the_run",
    "tests/pytest_plugin/test_script.py::test_a_healthy_script",
    "tests/pytest_plugin/test_script.py::test_a_script_that_cannot",
    "tests/pytest_plugin/test_script.py::test_excuses",
    "tests/pytest_plugin/test_script.py::test_promises",
    "tests/pytest_plugin/test_script.py::test_selection",
    "tests/pytest_plugin/test_script.py::test_the_settings",
    "tests/pytest_plugin/test_script.py::test_where_a_script",
    "tests/pytest_plugin/test_session_files.py::test_a_",
    "tests/pytest_plugin/test_session_files.py::test_annotations[xdist",
    "tests/pytest_plugin/test_snapshot_last_failed.py",
    "tests/pytest_plugin/test_snapshot_unused.py",
    "tests/pytest_plugin/test_snapshot_unused.py::test_a_test_that_keeps_no_curve",
    "tests/pytest_plugin/test_snapshot_unused.py::test_curves_of_subjects",
    "tests/pytest_plugin/test_snapshot_update.py::test_a_bad_file",
    "tests/pytest_plugin/test_snapshot_update.py::test_a_changed_rate",
    "tests/pytest_plugin/test_snapshot_update.py::test_a_missing_snapshot",
    "tests/pytest_plugin/test_snapshot_update.py::test_a_test_function",
    "tests/pytest_plugin/test_snapshot_update.py::test_each_name",
    "tests/pytest_plugin/test_snapshot_update.py::test_without_syrupy",
    "tests/pytest_plugin/test_snapshot_xdist.py",
    "tests/pytest_plugin/test_trainguard.py::test_unjudged_subjects_are_counted[xdist]",
    "tests/pytest_plugin/test_xdist.py::test_a_subject_stays_on_one_worker",
    "tests/pytest_plugin/test_xdist.py::test_a_wrong_declaration_is_told_once",
    "tests/pytest_plugin/test_xdist.py::test_other_ways_to_distribute_are_left_alone",
    "tests/pytest_plugin/test_xdist.py::test_the_closing_section_is_the_same",
    "tests/report/test_formats.py::test_a_browser_shows_the_page",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loader/guard_workers_open_the_archive_each_epoch]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_bin_width_halved]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_branches_do_not_meet]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_density_for_a_wide_bin]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_edge_bins_forgotten]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_log_scales_clamped_below_only]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_log_scales_clamped_both_sides]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_log_scales_unclamped]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_masked_prediction_in_bfloat16]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_negatives_reseed_torch]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_sigmoids_saturated]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_tails_swallow_bins]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[loss/guard_token_mean_over_batch]",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[memory/",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[model/guard_compiled",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_checkpoint_of",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_plateau",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_clipped_by_the",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_dropout_of_whole",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_words",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_epoch_of",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_timeout",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_masks",
    "tests/test_matrix.py::test_a_broken_fixture_breaks_what_it_says[ranks/guard_sum",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[ranks/guard_accumulation",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[ranks/guard_batches",
    "tests/test_matrix.py::test_a_broken_training_is_found_by_run",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loader/guard_resumable_sampler]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loop/guard_schedules_of_all_sorts]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loop/guard_workers_of_all_sorts]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loss/guard_divergences]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loss/guard_hinge]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loss/guard_mixture_of_logistics]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loss/guard_pixelcnn_16_bits]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loss/guard_redundancy_reduction]",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[memory/",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[model/guard_compiled",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[ranks/",
    "tests/test_matrix.py::test_a_healthy_training_passes_run",
    "tests/test_matrix.py::test_a_healthy_fixture_passes_everything[loop/guard_sets_that",
    "tests/test_readme.py::test_what_the_readme_goes_on_with",
    "tests/test_reference_curves.py",
    "tests/test_wheel.py",
    "tests/third_party/",
    "tests/test_how_to.py::test_a_page_is",
)


# Each of these trains: of the parameters of one test so many are quick, and the others slow.
THINNED = {
    "tests/command/run/": 1,
    "tests/observe/loader/test_bad_input.py::test_a_loader_that_hangs": 1,
    "tests/observe/loop/counterfactual/": 1,
    "tests/observe/loop/watch/": 1,
    "tests/observe/loop/test_": 1,
}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, by the files and functions that they stand in."""
    seen: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        quick = next((n for start, n in THINNED.items() if function.startswith(start)), len(items))
        if item.nodeid.startswith(SLOW) or seen[function] >= quick:
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            seen[function] += 1


_file: Path | None = None  # whose tests are being run


def pytest_runtest_setup(item: pytest.Item) -> None:
    """
    Leave the modules of all tests out of searches of the heap: a million objects in each recording.

    Again where tests of a file before have brought them back. Not asked before each test: to count
    what is left out takes a twentieth of a second, and there are thousands of tests.
    """
    global _file
    if item.path != _file and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    _file = item.path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults were tried, and how many held."""
    reports = [r for kind in terminalreporter.stats.values() for r in kind]
    told = [dict(r.user_properties) for r in reports if getattr(r, "when", "") == "teardown"]
    tried, held = (sum(each.get(name, 0) for each in told) for name in ("tried", "held"))
    if tried:
        terminalreporter.write_line(f"faults: tried {tried} / held {held}")


@pytest.fixture(autouse=True)
def _outside_ci(monkeypatch) -> None:
    """Hide from runs inside a test that they are in CI, and that they are in a worker of xdist."""
    # In CI pytest repeats whole messages; in a worker syrupy reports nothing.
    for variable in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def _alone(monkeypatch) -> None:
    """Take threads that other tests have left in this process for idle: no child is made beside."""
    left = {t.name for t in threading.enumerate() if t is not threading.main_thread()}
    if left:
        monkeypatch.setattr(forking, "_IDLE", forking._IDLE | left)


@pytest.fixture(autouse=True)
def _from_anywhere(monkeypatch) -> None:
    """Let messages name files alone, wherever pytest was started."""
    monkeypatch.setattr(notebook, "_ROOT", Path("/nowhere"))

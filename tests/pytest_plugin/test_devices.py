"""--trainguard-devices, and `devices` of tg.check."""

import pytest

import trainguard as tg


def test_cpu_alone(project) -> None:
    """The items of other devices are not there."""
    project.declare("guard_x", "mse")
    ids = project.collected("--trainguard-devices=cpu")
    assert "guard_x.py::mse::value_is_finite[cpu-float32]" in ids
    assert not [line for line in ids if "[cuda" in line]


def test_a_device_that_is_absent_is_skipped(project, monkeypatch) -> None:
    """Items of a device that this machine lacks are skipped, and the closing section says why."""
    monkeypatch.setattr("torch.xpu.is_available", lambda: False)
    project.declare("guard_x", "mse")
    result = project.run(
        "--trainguard-devices=cpu,xpu", "--trainguard-select=value_is_finite,devices_agree", "-rs"
    )
    result.assert_outcomes(passed=1, skipped=2)
    sentence = "*the device 'xpu' is not present here, only cpu*"
    result.stdout.fnmatch_lines([f"*skipped*2: {sentence}", f"SKIPPED*{sentence}"])
    result.stdout.fnmatch_lines("1 subject, 3 invariants: 1 passed, 2 skipped")


def test_the_device_is_a_marker(project) -> None:
    """Items are selectable by the name of their device, also under --strict-markers."""
    project.declare("guard_x", "mse")
    options = ("--trainguard-select=value_is_finite", "--strict-markers")
    assert len(project.collected(*options, "-m", "cpu")) == 1
    assert project.collected(*options, "-m", "not cpu") == []


def test_a_device_with_a_number_is_skipped_where_there_are_not_so_many(project) -> None:
    """A name such as torch.accelerator has it is taken, and looked for by its number."""
    project.declare("guard_x", "mse")
    result = project.run("--trainguard-devices=cpu:1", "--trainguard-select=value_is_finite", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines("SKIPPED*the device 'cpu:1' is not present here*")


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_session_without_any_of_its_devices_fails(project, workers) -> None:
    """A job that has lost what it was to judge on does not pass for it."""
    project.declare("guard_x", "mse")
    select = "--trainguard-select=value_is_finite,gradient_is_finite"
    result = project.run("--trainguard-devices=cpu:1,cpu:2", select, *workers)
    result.assert_outcomes(skipped=4)
    absent = "; ".join(f"the device 'cpu:{n}' is not present here, only *cpu*" for n in (1, 2))
    result.stdout.fnmatch_lines(f"nothing was judged: {absent}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_devices_of_the_settings_are_named_too(project) -> None:
    """What is judged on no device passes, and the session fails for the rest."""
    project.declare("guard_x", "mse", "warmup")
    project.pytester.makepyprojecttoml("[tool.trainguard]\ndevices = ['cpu:1']\n")
    result = project.run("--trainguard-select=value_is_finite,rate_is_finite_and_positive")
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines("nothing was judged on cpu:1: the device 'cpu:1' is not present*")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("devices", ["cpu,cpu:1", "cpu:1"])
def test_a_session_that_could_judge_what_it_was_asked_passes(project, devices) -> None:
    """One of the devices is there, or there is nothing to judge on a device: a skip is a skip."""
    subject = "mse" if devices.startswith("cpu,") else "warmup"
    project.declare("guard_x", subject)
    select = "--trainguard-select=value_is_finite,rate_is_finite_and_positive"
    result = project.run(select, f"--trainguard-devices={devices}")
    result.stdout.no_fnmatch_line("nothing was judged*")
    assert result.ret == pytest.ExitCode.OK


def test_a_device_that_nobody_registered_fails(project) -> None:
    """A name that torch has never heard of judges nothing, and that is no pass."""
    project.declare("guard_x", "mse")
    result = project.run("--trainguard-devices=abacus", "--trainguard-select=value_is_finite")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines("*PyTorch knows no device 'abacus'.*")


def error(prediction, target):
    """Return the mean squared error."""
    return (prediction - target).square().mean()


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("cpu:1", "The device 'cpu:1' is not present here, only cpu"),
        (["cpu", "cuda:99"], "The device 'cuda:99' is not present here, only cpu"),
        ([""], "PyTorch knows no device ''"),
        (["cuda:x"], "PyTorch knows no device 'cuda:x'"),
    ],
)
def test_a_check_judges_nothing_on_a_device_that_is_not_there(devices, said) -> None:
    """It says so in a sentence, rather than what torch would say of it, or a pass on another."""
    loss = tg.Loss(error, prediction=tg.real("B N", -2, 2), target=tg.real("B N", -2, 2))
    with pytest.raises(tg.DeclarationError, match=said):
        tg.check(loss, select=["value_is_finite"], devices=devices)

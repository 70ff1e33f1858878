"""--allow: excuses are strict here as they are in declarations."""

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


def test_an_excuse(folder) -> None:
    """What is excused does not fail, and is told with its reason."""
    folder.trains(zero="")
    done = folder.run("--allow", f"{LEFT_OVER}=summed on purpose, a = b", "train.py")
    assert done.returncode == 0
    assert " 1 excused\n" in done.stdout
    assert f"  excused   {LEFT_OVER}: summed on purpose, a = b\n" in done.stdout


def test_a_stale_excuse(folder) -> None:
    """An excuse for what does not break fails, and says what to remove."""
    done = folder.run("--allow", f"loop.{LEFT_OVER}=once", "train.py")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert f"{LEFT_OVER}: `train.py` is excused and does not break it" in lines
    assert '  why       the excuse "once" is stale' in lines
    assert f"  silence   remove '{LEFT_OVER}' from --allow" in lines
    assert any(line.endswith(" passed, 1 with a stale excuse") for line in lines)

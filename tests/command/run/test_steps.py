"""--steps: a training is stopped cleanly, at the last wanted step."""

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


FOREVER = """\
try:
    {loop}
except Exception:
    print("never here")
finally:
    print("closed after", step)
print("never here either")
"""


def endless(folder, zero: str = "optimizer.zero_grad()") -> str:
    """Return a training without an end, with a finally block around it."""
    head, loop = folder.training(steps="10**9", zero=zero).split("for step", 1)
    return head + FOREVER.format(loop=("for step" + loop).rstrip().replace("\n", "\n    "))


def test_steps(folder) -> None:
    """So many steps are made; `finally` blocks run, and nothing that comes after them."""
    folder.write("train.py", endless(folder))
    done = folder.run("--steps", "12", "--json", "out.json", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("closed after 11\n\n==")
    assert "12 steps of AdamW" in done.stdout
    assert "(stopped)" in done.stdout
    assert folder.document()["trace"]["steps"] == 12


def test_what_was_seen_is_judged(folder) -> None:
    """What breaks within these steps is found."""
    folder.write("train.py", endless(folder, zero=""))
    done = folder.run("--steps", "12", "train.py")
    assert done.returncode == 1
    assert f"{LEFT_OVER}: " in done.stdout


def test_a_script_that_catches_everything(folder) -> None:
    """A bare except delays the end to the next step; it cannot prevent it for ever."""
    loop = (
        "for _ in range(1000):\n    try:\n        optimizer.step()\n"
        "    except BaseException as stop:\n        caught = stop\n    else:\n        continue\n"
        "    print('caught', _)\n    if _ == 4:\n        raise caught\n"
    )
    folder.trains(steps=1, after=loop)
    done = folder.run("--steps", "3", "train.py")
    assert done.returncode in (0, 1)
    assert done.stdout.startswith("caught 1\ncaught 2\ncaught 3\ncaught 4\n\n==")


def test_a_script_that_ends_before(folder) -> None:
    """A shorter run is a finished one."""
    done = folder.run("--steps", "1000", "train.py")
    assert done.returncode == 0
    assert "30 steps of AdamW" in done.stdout
    assert "(stopped)" not in done.stdout

"""Scripts that are hard on torch, or on what is recorded of it."""

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


def test_a_script_that_deletes_its_optimizer(folder) -> None:
    """A second optimizer takes over half-way; the first is gone, and so is its memory."""
    inside = (
        "if step == 15:\n"
        "    import gc, weakref\n"
        "    gone = weakref.ref(optimizer)\n"
        "    del optimizer\n"
        "    gc.collect()\n"
        "    print('gone', gone() is None)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)"
    )
    folder.trains(inside=inside)
    done = folder.run("--json", "out.json", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("gone True\n")
    assert folder.document()["trace"]["optimizers"] == {"AdamW": 15, "SGD": 15}


PATCHED = """\
own_backward, own_step, own_call = torch.Tensor.backward, torch.optim.AdamW.step, nn.Module.__call__
calls = []
def backward(self, *args, **kwargs):
    calls.append("backward")
    return own_backward(self, *args, **kwargs)
def step(self, *args, **kwargs):
    calls.append("step")
    return own_step(self, *args, **kwargs)
def call(self, *args, **kwargs):
    calls.append("call")
    return own_call(self, *args, **kwargs)
torch.Tensor.backward, torch.optim.AdamW.step, nn.Module.__call__ = backward, step, call
"""


def test_a_script_that_patches_torch(folder) -> None:
    """Its patches work as they do without us, and what it does wrong is still found."""
    after = "print(calls.count('backward'), calls.count('step'), calls.count('call') >= 30)"
    folder.trains(before=PATCHED, zero="", after=after)
    done = folder.run("--json", "out.json", "train.py")
    assert done.stdout.startswith("30 30 True\n")
    assert folder.found() == [LEFT_OVER]


def test_a_script_that_puts_torch_back(folder) -> None:
    """A script may put back what it found at its beginning, in the middle of the run."""
    before = "kept = nn.Module.__call__, torch.autograd.backward"
    inside = "if step == 10:\n    nn.Module.__call__, torch.autograd.backward = kept"
    folder.trains(before=before, inside=inside)
    done = folder.run("train.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_records_itself(folder) -> None:
    """A recording inside the recorded script sees its part, and the outer one the whole."""
    lines = folder.training(imports="import trainguard as tg").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("for step"))
    loop = [
        "with tg.record('inner', steps=10) as seen:",
        *("    " + line for line in lines[start:]),
    ]
    last = ["print(seen.trace.conditions['steps'])"]
    folder.write("train.py", "\n".join([*lines[:start], *loop, *last]) + "\n")
    done = folder.run("train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10\n")
    assert "10 steps of AdamW" in done.stdout

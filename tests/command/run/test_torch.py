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


ENSEMBLE = """\
import copy
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

torch.manual_seed(0)
nets = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(4)]
parameters, _ = stack_module_state(nets)
base = copy.deepcopy(nets[0]).to("meta")
points = torch.randn(256, 8)

def loss_of(own, x, y):
    return nn.functional.mse_loss(functional_call(base, own, (x,)), y)

optimizer = torch.optim.Adam(parameters.values(), lr=0.01)
for _ in range(40):
    x = points[torch.randint(0, 256, (32,))]
    held = {name: value.detach() for name, value in parameters.items()}
    for name, value in vmap(grad(loss_of), (0, None, None))(held, x, x[:, :1] * 2).items():
        parameters[name].grad = value
    optimizer.step()
print(sum(value.double().sum().item() for value in parameters.values()).hex())
"""


def test_an_ensemble_of_torch_func(folder) -> None:
    """Its tensors have no storage: nothing is asked of them, and no watcher fails."""
    script = folder.write("train.py", ENSEMBLE)
    alone = folder.python(script)
    done = folder.run("train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert alone.stdout in done.stdout
    assert "40 steps of Adam" in done.stdout
    assert "switched off" not in done.stdout

"""Scripts that replace parts of torch themselves while they are recorded."""

import sys
from functools import wraps

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loop.attributes import attributes, places
from tests.observe.loop.trainings import plain
from trainguard.observe.loop.recorder import Recorder

USERS = {
    "Tensor.backward": (torch.Tensor, "backward"),
    "autograd.backward": (torch.autograd, "backward"),
    "Module.__call__": (nn.Module, "__call__"),
    "Module.zero_grad": (nn.Module, "zero_grad"),
    "Optimizer.zero_grad": (optimizers.Optimizer, "zero_grad"),
    "Adam.step": (torch.optim.Adam, "step"),
    "clip_grad_norm_": (nn.utils, "clip_grad_norm_"),
    "_get_total_norm": (nn.utils.clip_grad, "_get_total_norm"),
    "mse_loss": (F, "mse_loss"),
    "cross_entropy": (F, "cross_entropy"),
    "StepLR.step": (lr_scheduler.StepLR, "step"),
    "GradScaler.scale": (torch.amp.GradScaler, "scale"),
    "DataLoader.__iter__": (DataLoader, "__iter__"),
    "print": (sys, "stdout"),
}


@pytest.mark.parametrize("user", USERS)
def test_a_patch_of_the_user_stays(user) -> None:
    """What the script replaced itself during the recording is there afterwards, and works."""
    owner, name = USERS[user]
    if not hasattr(owner, name):
        pytest.skip("this torch has no such function")
    where = places()
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # torch wraps its step at the first one
    original, calls = vars(owner).get(name), []
    own = attributes(where)

    def patch():
        """Replace it as a script would, calling what was there."""
        inner = getattr(owner, name)
        if name == "stdout":
            return type("Tee", (), {"__getattr__": lambda _, key: getattr(inner, key)})()

        @wraps(inner)
        def theirs(*args, **kwargs):
            """Count the call, and make it."""
            calls.append(name)
            return inner(*args, **kwargs)

        return theirs

    try:
        with Recorder("x"):
            mine = patch()
            setattr(owner, name, mine)
            run_all()
        assert vars(owner)[name] is mine
        during = len(calls)
        run_all()
        assert name == "stdout" or len(calls) > during > 0
    finally:
        setattr(owner, name, original) if original is not None else delattr(owner, name)
    after = attributes(where)
    assert [key for key in own if after.get(key) is not own[key]] == []


def run_all() -> None:
    """Call each of the functions that a user may have replaced."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    for (inputs,) in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, torch.zeros(4, dtype=torch.long))
        loss = loss + F.mse_loss(outputs, torch.zeros(4, 3))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        model.zero_grad()
        torch.autograd.backward(model(inputs).sum())
        print("loss 0.5")


def test_what_a_script_kept_of_ours_passes_on() -> None:
    """Functions taken during the recording work after it, and record nothing."""
    with Recorder("x") as recorder:
        kept = {user: getattr(owner, name, None) for user, (owner, name) in USERS.items()}
        backward, call = kept["autograd.backward"], kept["Module.__call__"]
        plain(steps=1)
    count = len(recorder.trace)
    model = nn.Linear(2, 1)
    backward(call(model, torch.ones(1, 2)).sum())
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    assert len(recorder.trace) == count


def pick(inputs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return something of many functions of torch, as a compiler of its own has to find them."""
    larger = torch.maximum(torch.max(inputs, others), torch.min(inputs, others))
    first = torch.topk(torch.sort(larger, dim=1)[0], 2)[0].softmax(1)
    return (
        torch.minimum(first, torch.sigmoid(first)).clamp(min=0.1).sum() + torch.relu(larger).mean()
    )


def test_scripted_functions_find_those_of_torch() -> None:
    """The compiler of torch.jit knows built-in functions by what they are, and not by name."""
    inputs, others = torch.randn(3, 4), torch.randn(3, 4)
    with Recorder("x"):
        scripted = torch.jit.script(pick)
        assert scripted(inputs, others) == pick(inputs, others)


WHOLE = {
    "log_prob": lambda x: Normal(x.mean(), 1.0, validate_args=False).log_prob(x).sum(),
    "rsample": lambda x: Normal(x, torch.ones_like(x), validate_args=False).rsample().sum(),
    "entropy": lambda x: Categorical(logits=x, validate_args=False).entropy().sum(),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long)),
    "softmax": lambda x: F.softmax(x, -1).detach() + x.log_softmax(-1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_function_that_is_compiled_as_a_whole(name) -> None:
    """The compiler goes through what was there before us, and needs no break for it."""
    x = torch.randn(4, 3)
    torch.manual_seed(0)
    expected = WHOLE[name](x)
    torch._dynamo.reset()
    with Recorder("x") as recorder:
        torch.manual_seed(0)
        compiled = torch.compile(WHOLE[name], backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)
    assert "faults" not in recorder.trace.conditions

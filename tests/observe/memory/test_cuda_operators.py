"""What CUDA does otherwise than the cpu, known where no CUDA is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks import memory
from tests.torches import HAS_GROUPED_HEADS
from trainguard.observe.memory.fake import FakeAllocationLog, fake_tensors
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.memory.training import Training

FLASH, EFFICIENT, WRITTEN_OUT, OF_CPU = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "bmm",
    "_scaled_dot_product_flash_attention_for_cpu",
)
LENGTH = 12
SHAPE = (2, 4, LENGTH, 16)  # batch, heads, length, width of a head
MASK = {"attn_mask": partial(torch.ones, LENGTH, LENGTH, dtype=torch.bool)}


def made_by(work: Callable[[], object], target: str = "cuda") -> list[str]:
    """Return the operations that make storages, where work is done on fake tensors."""
    with fake_tensors(target), FakeAllocationLog().following() as ledger:
        work()
    return [entry.operation for entry in ledger.entries]


def attend(dtype: torch.dtype, *shape: int, **how: Any) -> None:
    """Attend from three tensors with gradients, and go back."""
    given = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    how = {name: made() if callable(made) else made for name, made in how.items()}
    F.scaled_dot_product_attention(*given, **how).sum().backward()


@pytest.mark.parametrize(
    ("kernel", "dtype", "shape", "how"),
    [
        (EFFICIENT, torch.float32, SHAPE, {}),
        (EFFICIENT, torch.float32, SHAPE, {"dropout_p": 0.1}),
        (EFFICIENT, torch.float32, SHAPE, MASK),
        (EFFICIENT, torch.bfloat16, SHAPE, MASK),
        (FLASH, torch.bfloat16, SHAPE, {"dropout_p": 0.1, "is_causal": True}),
        (FLASH, torch.float16, (*SHAPE[:3], 10), {}),  # filled up to 16
        (WRITTEN_OUT, torch.float64, SHAPE, {}),
        (WRITTEN_OUT, torch.float32, (*SHAPE[:3], 10), {}),  # no multiple of 16 bytes
        (WRITTEN_OUT, torch.bfloat16, SHAPE[1:], {}),  # of three dimensions
        (EFFICIENT, torch.bfloat16, (1, 1, LENGTH, 264), {}),  # too wide for flash attention
    ],
)
def test_attention_takes_the_kernel_of_cuda(
    kernel: str, dtype: torch.dtype, shape: tuple[int, ...], how: dict[str, Any]
) -> None:
    """The first that takes the tensors: flash, memory-efficient, or written out."""
    made = made_by(lambda: attend(dtype, *shape, **how))
    taken = {name for name in (FLASH, EFFICIENT, WRITTEN_OUT) if name in made}
    assert taken == {kernel}
    assert kernel == WRITTEN_OUT or f"{kernel}_backward" in made


def test_a_kernel_that_is_switched_off_is_not_taken() -> None:
    """What the team chooses with `sdpa_kernel` is what is predicted."""

    def chosen(backend: SDPBackend) -> list[str]:
        """Attend with one backend alone."""
        with sdpa_kernel(backend):
            return made_by(lambda: attend(torch.bfloat16, *SHAPE))

    assert FLASH in chosen(SDPBackend.FLASH_ATTENTION)
    assert EFFICIENT in chosen(SDPBackend.EFFICIENT_ATTENTION)
    assert WRITTEN_OUT in chosen(SDPBackend.MATH)


def test_the_cpu_takes_its_own() -> None:
    """Nothing of this is done where the cpu is what is predicted for, nor afterwards."""
    work = partial(attend, torch.float32, *SHAPE)
    made_by(work)
    assert OF_CPU in made_by(work, "cpu")
    assert "native_dropout" not in made_by(lambda: F.dropout(torch.ones(8)), "cpu")


@pytest.mark.skipif(not HAS_GROUPED_HEADS, reason="from torch 2.5 on")
def test_grouped_heads_are_not_repeated_in_low_precision() -> None:
    """Flash attention takes fewer heads of keys than of queries, and float32 writes them out."""

    def grouped(dtype: torch.dtype) -> list[str]:
        """Attend with two heads of keys for four of queries."""
        query, (key, value) = torch.Size(SHAPE), 2 * [torch.Size((2, 2, LENGTH, 16))]
        made = partial(torch.randn, dtype=dtype)
        attend = partial(F.scaled_dot_product_attention, enable_gqa=True)
        return made_by(lambda: attend(made(query), made(key), made(value)))

    assert FLASH in grouped(torch.bfloat16)
    assert WRITTEN_OUT in grouped(torch.float32)


def test_dropout_keeps_a_byte_for_each_number() -> None:
    """The mask of CUDA is of bytes; one that changes nothing, or is not trained, is none."""
    with fake_tensors("cuda"), FakeAllocationLog().following() as ledger:
        F.dropout(torch.ones(1000, requires_grad=True), 0.1)
    assert [entry.size for entry in ledger.entries] == [4000, 4000, 1000]
    for how in ({"p": 0.0}, {"p": 1.0}, {"training": False}):
        assert "native_dropout" not in made_by(lambda how=how: F.dropout(torch.ones(8), **how))


def test_real_tensors_do_what_they_did() -> None:
    """Batches that are made for real in the middle of a prediction are those of any other run."""

    def batch() -> tuple[Tensor, ...]:
        """Drop out, attend and sum, from one seed."""
        torch.manual_seed(0)
        given = torch.randn(3, *SHAPE)
        with torch.autocast("cpu", torch.bfloat16):
            summed = (given @ given.mT).sum(1).softmax(1)
        attended = F.scaled_dot_product_attention(*given, dropout_p=0.5)
        return F.dropout(given), attended, summed

    before = batch()
    with fake_tensors("cuda"), _disable_current_modes():
        within = batch()
    assert [tensor.dtype for tensor in within] == [tensor.dtype for tensor in before]
    assert all(map(torch.equal, before, within))


def test_an_encoder_keeps_no_weights_of_attention() -> None:
    """With dropout the cpu keeps a number for each pair of words, and CUDA does not."""

    def kept(target: str, length: int) -> int:
        """Return the activations of a layer of torch's own."""
        training = Training(
            build=lambda: nn.TransformerEncoderLayer(32, 2, 32, batch_first=True),
            feed=lambda: torch.zeros(1, length, 32),
            loss=lambda module, words: (module(words).mean(), None),
            optimizer=None,
        )
        return predict_step(lambda: training, target).timeline.highest()["activations"]

    assert kept("cuda", 2048) < 2.1 * kept("cuda", 1024)
    assert kept("cpu", 2048) > 3 * kept("cpu", 1024)


def test_norms_under_autocast_are_of_float32() -> None:
    """CUDA's lists have norms, exponentials and sums, where those of the cpu have none."""

    def dtypes(target: str) -> list[torch.dtype]:
        """Return the dtypes of what several operations make of bfloat16."""
        with fake_tensors(target), torch.autocast("cpu", torch.bfloat16):
            given = torch.ones(2, 4, 8, dtype=torch.bfloat16)
            made = [
                F.group_norm(given, 2),
                given.exp(),
                given.sum(),
                given.softmax(1),
                given @ given.mT,
            ]
            return [tensor.dtype for tensor in (*made, given.sum(1, dtype=torch.float64))]

    assert dtypes("cuda") == [*4 * [torch.float32], torch.bfloat16, torch.float64]
    assert dtypes("cpu") == [*5 * [torch.bfloat16], torch.float64]


# What the allocator of an NVIDIA H200 counted, with torch 2.11 on 2026-11-27.
@pytest.mark.parametrize(
    ("network", "again", "low", "counted"),
    [
        ("GPT", False, True, 65_603_584),
        ("GPT", True, False, 53_690_880),
        ("ViT", False, True, 44_389_888),
        ("ViT", True, False, 37_907_968),
        ("SaShiMi", False, False, 61_709_312),
        ("SaShiMi", False, True, 59_431_936),
    ],
)
def test_what_a_device_counted_is_predicted(
    network: str, again: bool, low: bool, counted: int
) -> None:
    """Networks without convolutions are predicted within a tenth of a percent."""
    made = memory.training(network, again, low, "fused")
    predicted = predict_step(lambda: made, "cuda").timeline.peak(0).total
    assert predicted == pytest.approx(counted, rel=0.001)

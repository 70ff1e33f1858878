"""Checksums change with every bit, and cost no copy."""

import pytest
import torch
from torch import nn

from trainguard.observe.tools.fingerprint import checksums, sample_elements

DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
)


def checksum(tensor: torch.Tensor) -> int | None:
    """Return the checksum of one tensor."""
    return checksums([tensor])[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (7, 11), (300, 301)], ids=str)
def test_one_element_is_enough(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Each dtype and size has a checksum, and it changes with the last element alone."""
    tensor = torch.ones(shape).to(dtype)
    before = checksum(tensor)
    assert before is not None
    assert checksum(tensor.clone()) == before
    values = torch.ones(shape)
    values.reshape(-1)[-1] = 0  # old versions of torch cannot set an element of a float8
    assert checksum(values.to(dtype)) != before


def test_the_smallest_change_is_seen() -> None:
    """A single unit in the last place of one of ten million elements changes the sum."""
    tensor = torch.randn(2500, 4000)
    before = checksum(tensor)
    row = tensor[1234]
    row[567] = torch.nextafter(row[567], torch.tensor(9.0))
    assert checksum(tensor) != before


def test_values_that_change_places_are_seen() -> None:
    """A plain sum would miss the sign of two opposite values, or two rows that were exchanged."""
    tensor = torch.tensor([0.5, -0.5])
    assert checksum(tensor) != checksum(-tensor)
    rows = torch.randn(4, 4)
    assert checksum(rows) != checksum(rows.flip(0))


def test_the_layout_in_memory_does_not_matter() -> None:
    """channels_last and transposed tensors have the checksum of their values."""
    image = torch.randn(8, 3, 5, 7)
    assert checksum(image) == checksum(image.to(memory_format=torch.channels_last))
    wide = torch.randn(600, 700)
    assert checksum(wide) == checksum(wide.t().contiguous().t())


def test_what_is_not_a_number_has_bits() -> None:
    """Not a number equals itself here, and a change beside it is seen."""
    tensor = torch.tensor([float("nan"), 1.0])
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor) != checksum(torch.tensor([float("nan"), 2.0]))


def test_a_conjugate_is_read_as_it_is() -> None:
    """A lazily conjugated tensor has the checksum of its values."""
    tensor = torch.randn(4, dtype=torch.complex64)
    assert checksum(tensor.conj()) == checksum(tensor.conj().resolve_conj())


def test_tensors_without_bits_have_none() -> None:
    """Those on the meta device and sparse ones do not disturb the others."""
    kinds = [torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(3), torch.ones(0)]
    meta, sparse, dense, empty = checksums(kinds)
    assert meta is sparse is None
    assert dense is not None
    assert empty == 0


@pytest.mark.filterwarnings("ignore")  # torch announces its own retirement of quantization
def test_a_quantized_tensor_has_bits() -> None:
    """Its integers are read."""
    tensor = torch.quantize_per_tensor(torch.randn(10), 0.1, 0, torch.qint8)
    assert checksum(tensor) == checksum(tensor.clone()) is not None


def test_a_parameter_is_only_read() -> None:
    """Neither its version nor its gradient is touched."""
    parameter = nn.Parameter(torch.randn(100, 1000))
    checksum(parameter)
    assert parameter._version == 0
    assert parameter.grad is None


@pytest.mark.parametrize("shape", [(64, 64), (1000, 1024), (4096, 16)], ids=str)
def test_a_sample_lies_all_over_the_tensor(shape: tuple[int, ...]) -> None:
    """It has as many elements as asked for, nearly, and is not all from one column."""
    rows = torch.arange(shape[0])[:, None].expand(shape)
    columns = torch.arange(shape[1])[None].expand(shape)
    assert 600 < len(sample_elements(rows, 1024)) <= 1024
    assert sample_elements(rows, 1024).max() > shape[0] / 2
    assert len(sample_elements(columns, 1024).unique()) > shape[1] / 4

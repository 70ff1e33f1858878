"""What the torch of these tests cannot do, as some that are supported cannot."""

import pytest
import torch
from torch.distributed import fsdp
from torch.nn import functional as F

# torch 2.4 does not tell the shape of what a node of a graph made; what reads it judges nothing.
SHAPES = pytest.mark.skipif(
    not hasattr(torch.ones(1, requires_grad=True).exp().grad_fn, "_input_metadata"),
    reason="this torch does not tell the shapes in a graph",
)
HAS_GROUPED_HEADS = "enable_gqa" in (F.scaled_dot_product_attention.__doc__ or "")  # from 2.5 on
HAS_STANCES = hasattr(torch.compiler, "set_stance")  # from 2.6 on, to run uncompiled
HAS_FULLY_SHARD = hasattr(fsdp, "fully_shard")  # from 2.6 on
# Of a row that may attend to nothing: torch 2.4 makes nan of it.
ATTENDS_TO_NOTHING = bool(
    F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 2)] * 3, torch.zeros(1, 1, 1, dtype=torch.bool)
    )
    .isfinite()
    .all()
)

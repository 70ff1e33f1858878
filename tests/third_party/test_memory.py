"""Models of transformers, x-transformers and MONAI: predicted memory is what a step takes."""

from collections.abc import Iterator

import pytest

import trainguard as tg
from tests.observe.memory.networks import real_peak
from tests.third_party.test_models import SUBJECTS
from trainguard.core.settings import Settings
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.tools.isolation import isolate

NAMES = (
    "guard_transformers_models-gpt2_model",
    "guard_transformers_models-llama_model",
    "guard_transformers_models-t5_model",
    "guard_x_transformers_models-autoregressive",
    "guard_monai_models-seg_res_net",
    "guard_monai_models-unetr",
)
CHOSEN = [(name, model) for name, model in SUBJECTS if name in NAMES]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run every step as an observation does: seeded, on one thread."""
    with isolate(0):
        yield


@pytest.mark.parametrize("model", [m for _, m in CHOSEN], ids=[name for name, _ in CHOSEN])
def test_a_model_takes_what_is_predicted(model: tg.Model) -> None:
    """Within 2 % of what torch's profiler counts over two real training steps."""
    declared = DeclaredStep(model, tg.Budget(device="cpu"), "cpu", "float32", Settings(), {})
    found = predict_step(declared.training, "cpu").timeline.peak(0).total
    assert found == pytest.approx(real_peak(declared.training), rel=0.02)

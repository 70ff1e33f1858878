"""All questions that are asked of a training."""

from collections.abc import Iterable
from typing import Any

from trainguard.observe.loop.counterfactual.accumulation import BatchAccumulated
from trainguard.observe.loop.counterfactual.batch_parts import BatchDivided
from trainguard.observe.loop.counterfactual.declared import RelationAsked
from trainguard.observe.loop.counterfactual.documents import DocumentEdited
from trainguard.observe.loop.counterfactual.evaluation_mode import EvaluationMode
from trainguard.observe.loop.counterfactual.graph_cuts import (
    GradientsWithGraph,
    StatesHandedOver,
)
from trainguard.observe.loop.counterfactual.graphless_terms import TermsWithoutGraph
from trainguard.observe.loop.counterfactual.ignored_labels import IgnoredLabelsEdited
from trainguard.observe.loop.counterfactual.inputs import InputsEdited
from trainguard.observe.loop.counterfactual.labels import LabelsExchanged
from trainguard.observe.loop.counterfactual.learning import BatchLearned
from trainguard.observe.loop.counterfactual.noise_scale import ScaleOfNoise
from trainguard.observe.loop.counterfactual.order import BatchPermuted
from trainguard.observe.loop.counterfactual.padding import PaddingEdited
from trainguard.observe.loop.counterfactual.question import Question
from trainguard.observe.loop.counterfactual.rates import OtherRates
from trainguard.observe.loop.counterfactual.replay import BatchAgain
from trainguard.observe.loop.counterfactual.samples import SampleEdited
from trainguard.observe.loop.counterfactual.shortcuts import AutocastOff, CompileOff, FusedOff
from trainguard.observe.loop.counterfactual.terminal_states import TerminalStatesEdited
from trainguard.observe.loop.counterfactual.unread_terms import TermsUnread
from trainguard.observe.loop.counterfactual.variants import (
    CheckpointsBypassed,
    LossesScaled,
    OtherNoise,
)


def all_questions(relations: Iterable[Any]) -> list[Question]:
    """Return all questions, in the order in which they are asked."""
    return [
        *map(RelationAsked, relations),
        PaddingEdited(),
        DocumentEdited(),
        (sample := SampleEdited()),
        BatchPermuted(sample),
        InputsEdited(),
        LabelsExchanged(),
        IgnoredLabelsEdited(),
        GradientsWithGraph(),
        StatesHandedOver(),
        TermsWithoutGraph(),
        ScaleOfNoise(),
        CheckpointsBypassed(),
        OtherNoise(),
        EvaluationMode(),
        LossesScaled(),
        AutocastOff(),
        CompileOff(),
        FusedOff(),
        BatchLearned(),
        BatchAgain(),
        TerminalStatesEdited(),
        BatchDivided(),
        BatchAccumulated(),
        TermsUnread(),
        OtherRates(),
    ]

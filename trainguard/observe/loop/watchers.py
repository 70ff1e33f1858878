"""The watchers of a recording, in the order in which they are told what happens."""

from trainguard.observe.loop.counterfactual.asking import Counterfactuals
from trainguard.observe.loop.watch.attended_padding import AttendedPadding
from trainguard.observe.loop.watch.averaged_copies import AveragedCopies
from trainguard.observe.loop.watch.batch_statistics import BatchStatistics
from trainguard.observe.loop.watch.batched_graphs import BatchedGraphs
from trainguard.observe.loop.watch.batches import Batches
from trainguard.observe.loop.watch.blended_classes import BlendedClasses
from trainguard.observe.loop.watch.broadcast_losses import BroadcastLosses
from trainguard.observe.loop.watch.chosen_models import ChosenModels
from trainguard.observe.loop.watch.clipping import Clipping
from trainguard.observe.loop.watch.collectives import Collectives
from trainguard.observe.loop.watch.components import Components
from trainguard.observe.loop.watch.conditions import Conditions
from trainguard.observe.loop.watch.constant_predictions import ConstantPredictions
from trainguard.observe.loop.watch.cosines import Cosines
from trainguard.observe.loop.watch.detached_probe import DetachedProbe
from trainguard.observe.loop.watch.epoch_orders import EpochOrders
from trainguard.observe.loop.watch.epoch_pairs import EpochPairs
from trainguard.observe.loop.watch.evaluation_metrics import EvaluationMetrics
from trainguard.observe.loop.watch.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.forwards import Forwards
from trainguard.observe.loop.watch.frozen_references import FrozenReferences
from trainguard.observe.loop.watch.future_probe import FutureProbe, PresentProbe, ShiftProbe
from trainguard.observe.loop.watch.gradient_reads import GradientReads
from trainguard.observe.loop.watch.gradients import Gradients
from trainguard.observe.loop.watch.graphless_samples import GraphlessSamples
from trainguard.observe.loop.watch.growing import Growing
from trainguard.observe.loop.watch.hidden_parameters import HiddenParameters
from trainguard.observe.loop.watch.ignored_classes import IgnoredClasses
from trainguard.observe.loop.watch.input_scales import InputScales
from trainguard.observe.loop.watch.label_order import LabelOrder
from trainguard.observe.loop.watch.labels import Labels
from trainguard.observe.loop.watch.leaked_gradients import LeakedGradients
from trainguard.observe.loop.watch.loaded_states import LoadedStates
from trainguard.observe.loop.watch.loaded_values import LoadedValues
from trainguard.observe.loop.watch.logged import LoggedValues
from trainguard.observe.loop.watch.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses import Losses
from trainguard.observe.loop.watch.meters import Meters
from trainguard.observe.loop.watch.mixing_probe import MixingProbe
from trainguard.observe.loop.watch.noise_targets import NoiseTargets
from trainguard.observe.loop.watch.padding_rows import PaddingRows
from trainguard.observe.loop.watch.parameters import Parameters
from trainguard.observe.loop.watch.picked_classes import PickedClasses
from trainguard.observe.loop.watch.policy_weights import PolicyWeights
from trainguard.observe.loop.watch.random_numbers import RandomNumbers
from trainguard.observe.loop.watch.rates import Rates
from trainguard.observe.loop.watch.read_places import ReadPlaces
from trainguard.observe.loop.watch.rebuilt_optimizers import RebuiltOptimizers
from trainguard.observe.loop.watch.repeat_probe import RepeatProbe
from trainguard.observe.loop.watch.replicas import Replicas
from trainguard.observe.loop.watch.reshaped_axes import ReshapedAxes
from trainguard.observe.loop.watch.resumed_schedules import ResumedSchedules
from trainguard.observe.loop.watch.sample_pairs import SamplePairs
from trainguard.observe.loop.watch.saturation import Saturation
from trainguard.observe.loop.watch.saved_files import SavedFiles
from trainguard.observe.loop.watch.scaling import Scaling
from trainguard.observe.loop.watch.scores import Scores
from trainguard.observe.loop.watch.self_matches import SelfMatches
from trainguard.observe.loop.watch.shared_layers import SharedLayers
from trainguard.observe.loop.watch.shared_rows import SharedRows
from trainguard.observe.loop.watch.spent_gradients import SpentGradients
from trainguard.observe.loop.watch.stored_samples import StoredSamples
from trainguard.observe.loop.watch.term_gradients import TermGradients
from trainguard.observe.loop.watch.time_memory import TimeAndMemory
from trainguard.observe.loop.watch.transitions import Transitions
from trainguard.observe.loop.watch.update_norms import UpdateNorms
from trainguard.observe.loop.watch.watcher import Watcher
from trainguard.observe.loop.watch.worker_copies import WorkerCopies

# Gradients are measured before others look at norms.
_ALL: tuple[type[Watcher], ...] = (
    Conditions,
    Scaling,
    Gradients,
    Losses,
    Clipping,
    Rates,
    UpdateNorms,
    Forwards,
    FrozenReferences,
    LossFunctions,
    TermGradients,
    BroadcastLosses,
    ConstantPredictions,
    EvaluationSkill,
    RepeatProbe,
    MixingProbe,
    FutureProbe,
    PresentProbe,
    ShiftProbe,
    DetachedProbe,
    SharedLayers,
    Batches,
    Scores,
    EvaluationMetrics,
    Labels,
    SamplePairs,
    EpochPairs,
    SharedRows,
    InputScales,
    IgnoredClasses,
    BlendedClasses,
    BatchedGraphs,
    PaddingRows,
    AttendedPadding,
    Cosines,
    ReadPlaces,
    PickedClasses,
    ReshapedAxes,
    Meters,
    Transitions,
    NoiseTargets,
    SelfMatches,
    LabelOrder,
    EpochOrders,
    WorkerCopies,
    StoredSamples,
    RandomNumbers,
    Replicas,
    Collectives,
    SavedFiles,
    ChosenModels,
    LoadedStates,
    LoadedValues,
    ResumedSchedules,
    AveragedCopies,
    BatchStatistics,
    HiddenParameters,
    Parameters,
    Saturation,
    TimeAndMemory,
    LoggedValues,
    GradientReads,
    SpentGradients,
    LeakedGradients,
    PolicyWeights,
    GraphlessSamples,
    Counterfactuals,
    Growing,
    RebuiltOptimizers,
)
# Those that make the columns of curves: all that a run needs which is made for them alone.
_OF_CURVES = {Conditions, Scaling, Gradients, Losses, Rates, UpdateNorms, TimeAndMemory}


def watchers(of_curves: bool = False, components: bool = False) -> list[type[Watcher]]:
    """Return the classes of watchers, in the order in which they are told: all, or a few."""
    chosen = [kind for kind in _ALL if not of_curves or kind in _OF_CURVES]
    return [*chosen, Components] if components else chosen

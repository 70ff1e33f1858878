"""The watchers of a recording, in the order in which they are told what happens."""

from trainguard.observe.loop.counterfactual.asking import Counterfactuals
from trainguard.observe.loop.counterfactual.first_steps import FirstSteps
from trainguard.observe.loop.watch.evaluations.augmented_evaluations import AugmentedEvaluations
from trainguard.observe.loop.watch.evaluations.batch_scales import BatchScales
from trainguard.observe.loop.watch.evaluations.chosen_models import ChosenModels
from trainguard.observe.loop.watch.evaluations.evaluation_lines import EvaluationLines
from trainguard.observe.loop.watch.evaluations.evaluation_metrics import EvaluationMetrics
from trainguard.observe.loop.watch.evaluations.evaluation_skill import EvaluationSkill
from trainguard.observe.loop.watch.evaluations.inverses import Inverses
from trainguard.observe.loop.watch.evaluations.meters import Meters
from trainguard.observe.loop.watch.evaluations.passed_edges import PassedEdges
from trainguard.observe.loop.watch.evaluations.ranked_tables import RankedTables
from trainguard.observe.loop.watch.evaluations.repeated_passes import RepeatedPasses
from trainguard.observe.loop.watch.evaluations.restored_states import RestoredStates
from trainguard.observe.loop.watch.evaluations.scores import Scores
from trainguard.observe.loop.watch.evaluations.target_scales import TargetScales
from trainguard.observe.loop.watch.evaluations.unjudged_rows import UnjudgedRows
from trainguard.observe.loop.watch.gradients.chosen_codes import ChosenCodes
from trainguard.observe.loop.watch.gradients.clipping import Clipping
from trainguard.observe.loop.watch.gradients.epsilons import Epsilons
from trainguard.observe.loop.watch.gradients.gradient_reads import GradientReads
from trainguard.observe.loop.watch.gradients.gradients import Gradients
from trainguard.observe.loop.watch.gradients.graphless_samples import GraphlessSamples
from trainguard.observe.loop.watch.gradients.leaked_gradients import LeakedGradients
from trainguard.observe.loop.watch.gradients.penalty_norms import PenaltyNorms
from trainguard.observe.loop.watch.gradients.replaced_gradients import ReplacedGradients
from trainguard.observe.loop.watch.gradients.saturation import Saturation
from trainguard.observe.loop.watch.gradients.scaling import Scaling
from trainguard.observe.loop.watch.gradients.spent_gradients import SpentGradients
from trainguard.observe.loop.watch.gradients.steep_places import SteepPlaces
from trainguard.observe.loop.watch.gradients.term_gradients import TermGradients
from trainguard.observe.loop.watch.gradients.unread_updates import UnreadUpdates
from trainguard.observe.loop.watch.losses.adversaries import Adversaries
from trainguard.observe.loop.watch.losses.averaged_weights import AveragedWeights
from trainguard.observe.loop.watch.losses.batch_choices import BatchChoices
from trainguard.observe.loop.watch.losses.blended_classes import BlendedClasses
from trainguard.observe.loop.watch.losses.bounded_scores import BoundedScores
from trainguard.observe.loop.watch.losses.broadcast_losses import BroadcastLosses
from trainguard.observe.loop.watch.losses.clipped_ratios import ClippedRatios
from trainguard.observe.loop.watch.losses.constant_predictions import ConstantPredictions
from trainguard.observe.loop.watch.losses.constant_targets import ConstantTargets
from trainguard.observe.loop.watch.losses.cosines import Cosines
from trainguard.observe.loop.watch.losses.crossed_columns import CrossedColumns
from trainguard.observe.loop.watch.losses.deviation_uses import DeviationUses
from trainguard.observe.loop.watch.losses.divergence_weights import DivergenceWeights
from trainguard.observe.loop.watch.losses.divided_losses import DividedLosses
from trainguard.observe.loop.watch.losses.drawn_actions import DrawnActions
from trainguard.observe.loop.watch.losses.dropped_outputs import DroppedOutputs
from trainguard.observe.loop.watch.losses.episode_ends import EpisodeEnds
from trainguard.observe.loop.watch.losses.free_weights import FreeWeights
from trainguard.observe.loop.watch.losses.hidden_numbers import HiddenNumbers
from trainguard.observe.loop.watch.losses.ignored_classes import IgnoredClasses
from trainguard.observe.loop.watch.losses.kept_answers import KeptAnswers
from trainguard.observe.loop.watch.losses.kept_probabilities import KeptProbabilities
from trainguard.observe.loop.watch.losses.leaf_losses import LeafLosses
from trainguard.observe.loop.watch.losses.likelihoods import Likelihoods
from trainguard.observe.loop.watch.losses.live_pairs import LivePairs
from trainguard.observe.loop.watch.losses.live_targets import LiveTargets
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.losses.losses import Losses
from trainguard.observe.loop.watch.losses.masked_choices import MaskedChoices
from trainguard.observe.loop.watch.losses.noise_levels import NoiseLevels
from trainguard.observe.loop.watch.losses.noise_targets import NoiseTargets
from trainguard.observe.loop.watch.losses.overlaps import Overlaps
from trainguard.observe.loop.watch.losses.own_choices import OwnChoices
from trainguard.observe.loop.watch.losses.own_negatives import OwnNegatives
from trainguard.observe.loop.watch.losses.own_targets import OwnTargets
from trainguard.observe.loop.watch.losses.pair_tables import PairTables
from trainguard.observe.loop.watch.losses.picked_classes import PickedClasses
from trainguard.observe.loop.watch.losses.policy_signs import PolicySigns
from trainguard.observe.loop.watch.losses.policy_weights import PolicyWeights
from trainguard.observe.loop.watch.losses.quantile_sides import QuantileSides
from trainguard.observe.loop.watch.losses.repeated_candidates import RepeatedCandidates
from trainguard.observe.loop.watch.losses.return_orders import ReturnOrders
from trainguard.observe.loop.watch.losses.rounded_weights import RoundedWeights
from trainguard.observe.loop.watch.losses.running_sums import RunningSums
from trainguard.observe.loop.watch.losses.self_distances import SelfDistances
from trainguard.observe.loop.watch.losses.self_matches import SelfMatches
from trainguard.observe.loop.watch.losses.shown_tokens import ShownTokens
from trainguard.observe.loop.watch.losses.soft_targets import SoftTargets
from trainguard.observe.loop.watch.losses.term_factors import TermFactors
from trainguard.observe.loop.watch.losses.term_signs import TermSigns
from trainguard.observe.loop.watch.losses.terminal_targets import TerminalTargets
from trainguard.observe.loop.watch.losses.token_weights import TokenWeights
from trainguard.observe.loop.watch.losses.transitions import Transitions
from trainguard.observe.loop.watch.losses.unread_draws import UnreadDraws
from trainguard.observe.loop.watch.losses.unused_losses import UnusedLosses
from trainguard.observe.loop.watch.losses.zero_terms import ZeroTerms
from trainguard.observe.loop.watch.models.attended_padding import AttendedPadding
from trainguard.observe.loop.watch.models.attention_axes import AttentionAxes
from trainguard.observe.loop.watch.models.awake_probe import AwakeProbe
from trainguard.observe.loop.watch.models.carried_states import CarriedStates
from trainguard.observe.loop.watch.models.components import Components
from trainguard.observe.loop.watch.models.detached_probe import DetachedProbe
from trainguard.observe.loop.watch.models.discarded_results import DiscardedResults
from trainguard.observe.loop.watch.models.forgotten_layers import ForgottenLayers
from trainguard.observe.loop.watch.models.forwards import Forwards
from trainguard.observe.loop.watch.models.future_probe import FutureProbe, PresentProbe, ShiftProbe
from trainguard.observe.loop.watch.models.gate_axes import GateAxes
from trainguard.observe.loop.watch.models.idle_inputs import IdleInputs
from trainguard.observe.loop.watch.models.log_determinants import LogDeterminants
from trainguard.observe.loop.watch.models.made_lines import MadeLines
from trainguard.observe.loop.watch.models.mixing_probe import MixingProbe
from trainguard.observe.loop.watch.models.padding_places import PaddingPlaces
from trainguard.observe.loop.watch.models.padding_probe import LatePaddingProbe, PaddingProbe
from trainguard.observe.loop.watch.models.padding_rows import PaddingRows
from trainguard.observe.loop.watch.models.picture_layouts import PictureLayouts
from trainguard.observe.loop.watch.models.position_tables import PositionTables
from trainguard.observe.loop.watch.models.read_places import ReadPlaces
from trainguard.observe.loop.watch.models.repeat_probe import RepeatProbe
from trainguard.observe.loop.watch.models.reshaped_axes import ReshapedAxes
from trainguard.observe.loop.watch.models.returned_messages import ReturnedMessages
from trainguard.observe.loop.watch.models.separated_copies import SeparatedCopies
from trainguard.observe.loop.watch.models.series_probe import SeriesProbe
from trainguard.observe.loop.watch.models.signal_probe import SignalProbe
from trainguard.observe.loop.watch.models.stacked_layers import StackedLayers
from trainguard.observe.loop.watch.models.zero_masks import ZeroMasks
from trainguard.observe.loop.watch.parameters.averaged_copies import AveragedCopies
from trainguard.observe.loop.watch.parameters.batch_statistics import BatchStatistics
from trainguard.observe.loop.watch.parameters.borrowed_memory import BorrowedMemory
from trainguard.observe.loop.watch.parameters.drawn_lines import DrawnLines
from trainguard.observe.loop.watch.parameters.drifted_paths import DriftedPaths
from trainguard.observe.loop.watch.parameters.equal_units import EqualUnits
from trainguard.observe.loop.watch.parameters.frozen_references import FrozenReferences
from trainguard.observe.loop.watch.parameters.hidden_parameters import HiddenParameters
from trainguard.observe.loop.watch.parameters.left_behind import LeftBehind
from trainguard.observe.loop.watch.parameters.loaded_states import LoadedStates
from trainguard.observe.loop.watch.parameters.loaded_values import LoadedValues
from trainguard.observe.loop.watch.parameters.merged_weights import MergedWeights
from trainguard.observe.loop.watch.parameters.parameters import Parameters
from trainguard.observe.loop.watch.parameters.partial_loads import PartialLoads
from trainguard.observe.loop.watch.parameters.resumed_averages import ResumedAverages
from trainguard.observe.loop.watch.parameters.rounded_updates import RoundedUpdates
from trainguard.observe.loop.watch.parameters.shared_layers import SharedLayers
from trainguard.observe.loop.watch.parameters.swapped_averages import SwappedAverages
from trainguard.observe.loop.watch.parameters.ties import Ties
from trainguard.observe.loop.watch.parameters.update_norms import UpdateNorms
from trainguard.observe.loop.watch.parameters.virgin_statistics import VirginStatistics
from trainguard.observe.loop.watch.parameters.zero_factors import ZeroFactors
from trainguard.observe.loop.watch.rates.former_optimizers import FormerOptimizers
from trainguard.observe.loop.watch.rates.group_settings import GroupSettings
from trainguard.observe.loop.watch.rates.placed_schedules import PlacedSchedules
from trainguard.observe.loop.watch.rates.rates import Rates
from trainguard.observe.loop.watch.rates.rebuilt_optimizers import RebuiltOptimizers
from trainguard.observe.loop.watch.rates.resumed_optimizers import ResumedOptimizers
from trainguard.observe.loop.watch.rates.resumed_schedules import ResumedSchedules
from trainguard.observe.loop.watch.runs.collectives import Collectives
from trainguard.observe.loop.watch.runs.conditions import Conditions
from trainguard.observe.loop.watch.runs.growing import Growing
from trainguard.observe.loop.watch.runs.random_numbers import RandomNumbers
from trainguard.observe.loop.watch.runs.replicas import Replicas
from trainguard.observe.loop.watch.runs.saved_files import SavedFiles
from trainguard.observe.loop.watch.runs.seeded_generators import SeededGenerators
from trainguard.observe.loop.watch.runs.time_memory import TimeAndMemory
from trainguard.observe.loop.watch.said.logged import LoggedValues
from trainguard.observe.loop.watch.samples.acted_states import ActedStates
from trainguard.observe.loop.watch.samples.batched_graphs import BatchedGraphs
from trainguard.observe.loop.watch.samples.batches import Batches
from trainguard.observe.loop.watch.samples.collated_pairs import CollatedPairs
from trainguard.observe.loop.watch.samples.drawn_negatives import DrawnNegatives
from trainguard.observe.loop.watch.samples.epoch_orders import EpochOrders
from trainguard.observe.loop.watch.samples.epoch_pairs import EpochPairs
from trainguard.observe.loop.watch.samples.field_rows import FieldRows
from trainguard.observe.loop.watch.samples.fold_rows import FoldRows
from trainguard.observe.loop.watch.samples.input_scales import InputScales
from trainguard.observe.loop.watch.samples.kept_noise import KeptNoise
from trainguard.observe.loop.watch.samples.label_order import LabelOrder
from trainguard.observe.loop.watch.samples.labels import Labels
from trainguard.observe.loop.watch.samples.left_loops import LeftLoops
from trainguard.observe.loop.watch.samples.missed_keys import MissedKeys
from trainguard.observe.loop.watch.samples.mixed_batches import MixedBatches
from trainguard.observe.loop.watch.samples.moved_targets import MovedTargets
from trainguard.observe.loop.watch.samples.named_scales import NamedScales
from trainguard.observe.loop.watch.samples.numberings import Numberings
from trainguard.observe.loop.watch.samples.own_scales import OwnScales
from trainguard.observe.loop.watch.samples.renumbered_rows import RenumberedRows
from trainguard.observe.loop.watch.samples.sample_pairs import SamplePairs
from trainguard.observe.loop.watch.samples.second_passes import SecondPasses
from trainguard.observe.loop.watch.samples.seeded_streams import SeededStreams
from trainguard.observe.loop.watch.samples.shared_indices import SharedIndices
from trainguard.observe.loop.watch.samples.shared_rows import SharedRows
from trainguard.observe.loop.watch.samples.shared_scales import SharedScales
from trainguard.observe.loop.watch.samples.shared_settings import SharedSettings
from trainguard.observe.loop.watch.samples.shared_targets import SharedTargets
from trainguard.observe.loop.watch.samples.split_rows import SplitRows
from trainguard.observe.loop.watch.samples.stand_ins import StandIns
from trainguard.observe.loop.watch.samples.stored_samples import StoredSamples
from trainguard.observe.loop.watch.samples.stream_buffers import StreamBuffers
from trainguard.observe.loop.watch.samples.worker_copies import WorkerCopies
from trainguard.observe.loop.watch.samples.wrapped_numbers import WrappedNumbers
from trainguard.observe.loop.watch.watcher import Watcher

# Gradients are measured before others look at norms.
_ALL: tuple[type[Watcher], ...] = (
    Conditions,
    Scaling,
    Gradients,
    Losses,
    LeafLosses,
    DividedLosses,
    Clipping,
    Rates,
    UpdateNorms,
    RoundedUpdates,
    Epsilons,
    Forwards,
    FrozenReferences,
    DriftedPaths,
    LossFunctions,
    TermGradients,
    BroadcastLosses,
    AveragedWeights,
    ConstantPredictions,
    EvaluationSkill,
    RestoredStates,
    Inverses,
    RepeatProbe,
    AwakeProbe,
    RepeatedPasses,
    MixingProbe,
    CarriedStates,
    FutureProbe,
    PresentProbe,
    ShiftProbe,
    SeriesProbe,
    DetachedProbe,
    PaddingProbe,
    LatePaddingProbe,
    SignalProbe,
    IdleInputs,
    SharedLayers,
    StackedLayers,
    Batches,
    Scores,
    EvaluationLines,
    EvaluationMetrics,
    TargetScales,
    AugmentedEvaluations,
    UnjudgedRows,
    PassedEdges,
    ReturnedMessages,
    SeparatedCopies,
    Labels,
    SamplePairs,
    EpochPairs,
    SharedRows,
    SharedIndices,
    SharedTargets,
    FoldRows,
    SplitRows,
    InputScales,
    OwnScales,
    SharedScales,
    StreamBuffers,
    BatchScales,
    StandIns,
    NamedScales,
    IgnoredClasses,
    BlendedClasses,
    BatchedGraphs,
    PaddingRows,
    PaddingPlaces,
    AttendedPadding,
    AttentionAxes,
    GateAxes,
    ConstantTargets,
    Cosines,
    CrossedColumns,
    PairTables,
    LivePairs,
    ReadPlaces,
    PickedClasses,
    ReshapedAxes,
    PositionTables,
    LogDeterminants,
    BatchChoices,
    PictureLayouts,
    Meters,
    RankedTables,
    Transitions,
    SeededGenerators,
    SeededStreams,
    ActedStates,
    NoiseTargets,
    NoiseLevels,
    SelfMatches,
    OwnNegatives,
    OwnChoices,
    SelfDistances,
    OwnTargets,
    MaskedChoices,
    ShownTokens,
    LabelOrder,
    EpochOrders,
    WorkerCopies,
    SecondPasses,
    CollatedPairs,
    StoredSamples,
    MovedTargets,
    SharedSettings,
    RandomNumbers,
    Replicas,
    Collectives,
    SavedFiles,
    ChosenModels,
    LoadedStates,
    LoadedValues,
    PartialLoads,
    ForgottenLayers,
    ResumedSchedules,
    ResumedOptimizers,
    ResumedAverages,
    PlacedSchedules,
    AveragedCopies,
    SwappedAverages,
    BatchStatistics,
    VirginStatistics,
    MergedWeights,
    BorrowedMemory,
    HiddenParameters,
    Ties,
    Parameters,
    LeftBehind,
    ZeroFactors,
    DrawnLines,
    MadeLines,
    EqualUnits,
    ZeroMasks,
    ZeroTerms,
    RoundedWeights,
    UnusedLosses,
    KeptNoise,
    Saturation,
    ReplacedGradients,
    SteepPlaces,
    TimeAndMemory,
    LoggedValues,
    GradientReads,
    SpentGradients,
    LeakedGradients,
    PenaltyNorms,
    UnreadUpdates,
    PolicyWeights,
    KeptProbabilities,
    KeptAnswers,
    TermFactors,
    HiddenNumbers,
    TermSigns,
    PolicySigns,
    Overlaps,
    DiscardedResults,
    WrappedNumbers,
    DroppedOutputs,
    DivergenceWeights,
    TokenWeights,
    FieldRows,
    SoftTargets,
    Adversaries,
    DrawnActions,
    DrawnNegatives,
    UnreadDraws,
    QuantileSides,
    ClippedRatios,
    BoundedScores,
    LeftLoops,
    MissedKeys,
    Numberings,
    RenumberedRows,
    MixedBatches,
    FreeWeights,
    RunningSums,
    Likelihoods,
    DeviationUses,
    LiveTargets,
    RepeatedCandidates,
    ReturnOrders,
    EpisodeEnds,
    TerminalTargets,
    GraphlessSamples,
    ChosenCodes,
    Counterfactuals,
    FirstSteps,
    Growing,
    RebuiltOptimizers,
    FormerOptimizers,
    GroupSettings,
)
# Those that make the columns of curves: all that a run needs which is made for them alone.
_OF_CURVES = {Conditions, Scaling, Gradients, Losses, Rates, UpdateNorms, TimeAndMemory}


def watchers(of_curves: bool = False, components: bool = False) -> list[type[Watcher]]:
    """Return the classes of watchers, in the order in which they are told: all, or a few."""
    chosen = [kind for kind in _ALL if not of_curves or kind in _OF_CURVES]
    return [*chosen, Components] if components else chosen

"""Judgements of a training run, from what a recorder saw of it."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.loop import loss as loss  # isort: skip
from trainguard.invariants.loop import gradients as gradients  # isort: skip
from trainguard.invariants.loop import spending as spending  # isort: skip
from trainguard.invariants.loop import clipping as clipping  # isort: skip
from trainguard.invariants.loop import contrast as contrast  # isort: skip
from trainguard.invariants.loop import rates as rates  # isort: skip
from trainguard.invariants.loop import schedulers as schedulers  # isort: skip
from trainguard.invariants.loop import horizons as horizons  # isort: skip
from trainguard.invariants.loop import plateaus as plateaus  # isort: skip
from trainguard.invariants.loop import updates as updates  # isort: skip
from trainguard.invariants.loop import parameters as parameters  # isort: skip
from trainguard.invariants.loop import saturation as saturation  # isort: skip
from trainguard.invariants.loop import optimizer as optimizer  # isort: skip
from trainguard.invariants.loop import growth as growth  # isort: skip
from trainguard.invariants.loop import averages as averages  # isort: skip
from trainguard.invariants.loop import states as states  # isort: skip
from trainguard.invariants.loop import samples as samples  # isort: skip
from trainguard.invariants.loop import batches as batches  # isort: skip
from trainguard.invariants.loop import workers as workers  # isort: skip
from trainguard.invariants.loop import data as data  # isort: skip
from trainguard.invariants.loop import modes as modes  # isort: skip
from trainguard.invariants.loop import evaluations as evaluations  # isort: skip
from trainguard.invariants.loop import terms as terms  # isort: skip
from trainguard.invariants.loop import loss_values as loss_values  # isort: skip
from trainguard.invariants.loop import weights as weights  # isort: skip
from trainguard.invariants.loop import chance as chance  # isort: skip
from trainguard.invariants.loop import logged as logged  # isort: skip
from trainguard.invariants.loop import logged_accuracies as logged_accuracies  # isort: skip
from trainguard.invariants.loop import logged_averages as logged_averages  # isort: skip
from trainguard.invariants.loop import logged_metrics as logged_metrics  # isort: skip
from trainguard.invariants.loop import meters as meters  # isort: skip
from trainguard.invariants.loop import probes as probes  # isort: skip
from trainguard.invariants.loop import counterfactuals as counterfactuals  # isort: skip
from trainguard.invariants.loop import step_variants as step_variants  # isort: skip
from trainguard.invariants.loop import curves as curves  # isort: skip

"""Judgements of a training run, from what a recorder saw of it."""

# Imported in the order in which the catalogue lists them.
from trainguard.invariants.loop.losses import loss as loss  # isort: skip
from trainguard.invariants.loop.gradients import gradients as gradients  # isort: skip
from trainguard.invariants.loop.gradients import spending as spending  # isort: skip
from trainguard.invariants.loop.gradients import clipping as clipping  # isort: skip
from trainguard.invariants.loop.losses import contrast as contrast  # isort: skip
from trainguard.invariants.loop.rates import rates as rates  # isort: skip
from trainguard.invariants.loop.rates import schedulers as schedulers  # isort: skip
from trainguard.invariants.loop.rates import horizons as horizons  # isort: skip
from trainguard.invariants.loop.rates import plateaus as plateaus  # isort: skip
from trainguard.invariants.loop.gradients import updates as updates  # isort: skip
from trainguard.invariants.loop.parameters import parameters as parameters  # isort: skip
from trainguard.invariants.loop.gradients import saturation as saturation  # isort: skip
from trainguard.invariants.loop.parameters import optimizer as optimizer  # isort: skip
from trainguard.invariants.loop.runs import growth as growth  # isort: skip
from trainguard.invariants.loop.parameters import averages as averages  # isort: skip
from trainguard.invariants.loop.parameters import states as states  # isort: skip
from trainguard.invariants.loop.samples import samples as samples  # isort: skip
from trainguard.invariants.loop.samples import batches as batches  # isort: skip
from trainguard.invariants.loop.samples import workers as workers  # isort: skip
from trainguard.invariants.loop.samples import data as data  # isort: skip
from trainguard.invariants.loop.models import modes as modes  # isort: skip
from trainguard.invariants.loop.evaluations import evaluations as evaluations  # isort: skip
from trainguard.invariants.loop.losses import terms as terms  # isort: skip
from trainguard.invariants.loop.models import axes as axes  # isort: skip
from trainguard.invariants.loop.losses import loss_values as loss_values  # isort: skip
from trainguard.invariants.loop.losses import weights as weights  # isort: skip
from trainguard.invariants.loop.losses import chance as chance  # isort: skip
from trainguard.invariants.loop.said import logged as logged  # isort: skip
from trainguard.invariants.loop.said import logged_accuracies as logged_accuracies  # isort: skip
from trainguard.invariants.loop.said import logged_averages as logged_averages  # isort: skip
from trainguard.invariants.loop.said import logged_metrics as logged_metrics  # isort: skip
from trainguard.invariants.loop.models import probes as probes  # isort: skip
from trainguard.invariants.loop.models import counterfactuals as counterfactuals  # isort: skip
from trainguard.invariants.loop.models import step_variants as step_variants  # isort: skip
from trainguard.invariants.loop.runs import curves as curves  # isort: skip

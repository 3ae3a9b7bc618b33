"""Clipped gradients of any torch model, per example or group, near the cost of ordinary ones."""

from forethought.gradients.batch_mixing import check_model as check_model
from forethought.gradients.batch_mixing import replace_mixing_layers as replace_mixing_layers
from forethought.gradients.clipped import BatchDims as BatchDims
from forethought.gradients.clipped import clipped_sum as clipped_sum
from forethought.gradients.passes import Choice as Choice
from forethought.gradients.passes import SlowGradientsWarning as SlowGradientsWarning
from forethought.gradients.passes import example_losses as example_losses
from forethought.gradients.passes import explain as explain
from forethought.gradients.sums import ClippingRule as ClippingRule
from forethought.gradients.sums import Dense as Dense
from forethought.gradients.sums import Norms as Norms
from forethought.gradients.sums import Outer as Outer
from forethought.gradients.sums import Term as Term
from forethought.gradients.sums import next_clip_norm as next_clip_norm
from forethought.gradients.sums import noised_fraction_below as noised_fraction_below
from forethought.gradients.sums import quantile_update as quantile_update
from forethought.gradients.sums import rule as rule
from forethought.gradients.vmap_mode import Rule as Rule
from forethought.gradients.vmap_mode import Use as Use
from forethought.gradients.vmap_mode import register as register

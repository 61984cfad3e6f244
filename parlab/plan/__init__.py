"""Planning: what a layout costs on paper, and which layout is best."""

from parlab.plan.estimate import Estimate, estimate
from parlab.plan.hardware import A100, CLOCK, H100, Hardware, hardware_of
from parlab.plan.layout import Layout
from parlab.plan.models import *

"""The drawing of all figures: pictures, lanes, marks, and one theme."""

from parlab.views.drawing import rules as rules  # first, because it loads matplotlib

"""The tools of all figures: the picture, its lanes and marks, one theme; the film player; sliders and guesses."""

from parlab.views.engine import rules as rules  # first, because it loads matplotlib

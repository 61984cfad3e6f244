"""The tools of all figures. Begin with `picture` (what every figure function returns) or `player` (a film).

`picture`, `canvas`     a figure with a text that holds its numbers; its axes, drawn quickly
`lanes`, `marks`        a lane a rank over a time axis; boxes, words and arrows
`player`, `words`       films, and their stories
`explore`, `predict`    sliders above a figure; a guess before it
`theme`, `defaults`     one look for all, whatever the reader's matplotlib says
`arguments`             the rules of figures' arguments; `in_browser`: widgets of a page
"""

from parlab.views.engine import defaults as defaults  # first, because it loads matplotlib

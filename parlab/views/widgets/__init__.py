"""Widgets: sliders above a figure, questions to guess at, and films."""

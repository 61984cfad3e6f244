"""Choosing a layout: what time and memory go to, all layouts at once, who wins where, and how right the planner is."""

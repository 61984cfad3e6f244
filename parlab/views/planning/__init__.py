"""The choice of a layout: bills of time and memory, all layouts of a search, the best, and the planner's errors."""

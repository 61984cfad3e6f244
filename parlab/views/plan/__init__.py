"""The choice of a layout: bills of time and memory, a walk, a limit, and the planner's errors."""

"""Pipeline schedules: bars over memory, moves, bubbles, bounds."""

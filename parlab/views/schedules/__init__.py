"""Pipeline schedules: bars over memory, critical paths, bubbles."""

"""How ranks run. To find your way:

- A run has an engine, which every `Comm` calls: `base` has what all engines share, and what each does in its own way.
  `threads` is the engine of a world in one process: it matches the two ends of each message. `processes`, the package
  beside this one, has the other.
- How a task starts, is blocked, is released and ends stands in `crew`, below all engines. `strands` says how a thread
  parks and is woken, or a stack in a browser.
- `tasks` has the records of a running program. Each task keeps a `log` of what it did, for the simulated clock, and
  notes there which `memory` its rank holds.
- `diagnosis` says, as text, why ranks cannot move on, or how two calls differ.
- `process_state` is what a run changes in its whole process: Ctrl-C, BLAS's threads, the garbage collector.
"""

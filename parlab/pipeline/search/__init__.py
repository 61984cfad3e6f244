"""Schedules that are searched for, and the times that no schedule is below.

`straight.py`    the Zero Bubble paper's heuristic: stage r on rank r
`v_shaped.py`    the schedules on a V, and the best of them within a limit; `timetable.py` moves their actions
`weights.py`     puts the W's into the gaps between F's and I's, for both
`local.py`       local search, with which both end
`exact.py`       the best of all schedules, for small sizes
`bounds.py`      a time that no schedule is below
"""

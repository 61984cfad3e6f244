"""Pipeline parallelism: a schedule is data, which is validated, simulated, drawn and executed.

Begin with `schedules`: each function is the order of a paper's actions on one rank. Then:

`actions`, `schedule`       the notation (`2F0`), and a schedule as data; `files` reads and writes it
`dependencies`              the actions that an action needs; `validate` refuses a schedule that cannot run
`times`                     when each action starts and ends; `simulate` makes a `timeline` of it; `stuck` a deadlock
`interpreter`               a rank's loop over its actions, on arrays; `execute` checks the call, `steps` posts receives
`partition`, `whole_model`  the layers of each stage, and the step of a whole model
`costs`, `closed_forms`     the times and the memory of actions; a step on paper
`bidirectional`, `search`   DualPipe's schedules, and those that are searched for
"""

from parlab.pipeline.actions import Action, Pair
from parlab.pipeline.bidirectional import dualpipe, dualpipe_v
from parlab.pipeline.costs import Costs, MemoryLimit
from parlab.pipeline.execute import run_schedule
from parlab.pipeline.partition import balance, partition
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.schedules import (
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from parlab.pipeline.search.bounds import lower_bound
from parlab.pipeline.search.exact import best_schedule
from parlab.pipeline.search.straight import zb_auto
from parlab.pipeline.search.v_shaped import one_f_one_b_v, v_controlled, v_half, v_min, zb_v
from parlab.pipeline.simulate import simulate
from parlab.pipeline.timeline import Idle, ScheduleTimeline
from parlab.pipeline.validate import validate
from parlab.pipeline.whole_model import KeptBytes, kept_bytes, losses_of_steps, step_of_ranks

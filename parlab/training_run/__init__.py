"""A training run from a file of settings: the command `parlab train`.

The settings say which model is trained on which text, and decide the losses. The mesh says on which ranks, and changes
no loss but by rounding. Begin with `train` in `loop`: its `program` is the loop that each rank runs. Then:

- `settings`: the model, the text and the training, from a file.
- `text`: the text's tokens.
- `going_on`: the notes that a run leaves in its checkpoint, and going on from there.
- `schedules`: the pipeline's schedule by its name.
"""

from parlab.training_run.going_on import settings_of_checkpoint
from parlab.training_run.loop import AXES, train
from parlab.training_run.schedules import SCHEDULES, default_microbatches, schedule_of
from parlab.training_run.settings import Settings, read_settings
from parlab.training_run.text import entropy_of_text, read_text

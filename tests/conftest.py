"""What every test shares."""

import os
import signal

from hypothesis import settings

# Tests that name no array library run on NumPy, also where a GPU answers: see tests/libraries.py.
os.environ.setdefault("PARLAB_ARRAYS", "numpy")

# Nothing timed belongs in a test: a slow machine is no failure. Where CI is set, hypothesis draws the same
# examples every time (the parent hands that on); elsewhere each run looks for new ones.
settings.register_profile("parlab", parent=settings(), deadline=None)
settings.load_profile("parlab")

# A shell that starts a command in the background lets it ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

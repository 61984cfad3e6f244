"""What every test shares."""

import os

from hypothesis import settings

# Nothing timed belongs in a test: a slow machine is no failure. In CI, which must say the same each time that it is
# asked, the examples follow from the test alone; elsewhere each run looks for new ones.
settings.register_profile("parlab", parent=settings(), deadline=None)
settings.register_profile("parlab-ci", deadline=None, derandomize=True, database=None)
settings.load_profile("parlab-ci" if os.environ.get("CI") else "parlab")

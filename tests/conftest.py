"""What every test shares."""

from hypothesis import settings

# Nothing timed belongs in a test: a slow machine is no failure. Where CI is set, hypothesis draws the same
# examples every time (the parent hands that on); elsewhere each run looks for new ones.
settings.register_profile("parlab", parent=settings(), deadline=None)
settings.load_profile("parlab")

"""What every test shares."""

from hypothesis import settings

# Nothing timed belongs in a test: a slow machine is no failure.
settings.register_profile("parlab", parent=settings(), deadline=None)
settings.load_profile("parlab")

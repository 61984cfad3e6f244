"""All strategies in one training step: whose message it is, and what a mesh costs."""

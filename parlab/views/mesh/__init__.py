"""All strategies in one training step: the messages of each, and the costs of a mesh."""

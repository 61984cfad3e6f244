"""ZeRO: the owners of the model's state, and the bytes that are held and sent through a step."""

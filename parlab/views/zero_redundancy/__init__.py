"""ZeRO: who owns which state, what is held and sent when."""

"""The timeline of a run: when each rank did what, with which rank, how many bytes it sent, how much it held."""

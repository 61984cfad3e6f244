"""What a run did: when, with whom, how many bytes, holding how much."""

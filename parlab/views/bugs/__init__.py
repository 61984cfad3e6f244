"""What a silent mistake does, and which check sees it."""

"""Silent mistakes: their effect, and the checks that see them."""

"""A text cut into chunks: of equal length, by memory, by sentences, by the attention that a cut crosses, by work."""

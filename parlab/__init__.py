"""parlab: the laboratory where people learn how large models are trained in parallel."""

__version__ = "0.1.0"

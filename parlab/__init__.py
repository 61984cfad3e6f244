"""parlab: the laboratory where people learn how large models are trained in parallel."""

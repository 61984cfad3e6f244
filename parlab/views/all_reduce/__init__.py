"""All-reduce algorithms: which of them is the fastest at which size."""

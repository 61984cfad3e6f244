"""All-reduce algorithms against each other: when each one is fastest."""

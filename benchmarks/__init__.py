"""What is measured against peers, each pair in the same run: `python -m benchmarks`, or one by its name."""

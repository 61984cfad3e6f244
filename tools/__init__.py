"""What is run by hand or by make; `python -m tools.NAME` from the root."""

"""The drawing of all figures: pictures, lanes, marks, and one theme."""

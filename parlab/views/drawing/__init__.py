"""What figures are drawn on and with: pictures, lanes, marks, and one theme."""

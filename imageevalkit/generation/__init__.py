"""The generate stage: what is left to do in a cell, and doing it."""

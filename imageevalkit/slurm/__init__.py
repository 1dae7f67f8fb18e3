"""Runs the jobs of a plan on Slurm, or exports them."""

"""From options to the jobs of a run."""

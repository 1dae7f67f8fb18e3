"""The orders of jobs, and the files in which jobs report progress and outcomes."""

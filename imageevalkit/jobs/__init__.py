"""What a job is told, and the files by which it reports."""

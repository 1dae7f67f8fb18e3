"""Images, errors, text, locks, hashes and files: used everywhere."""

"""The evaluate stage: scores the generated images, counts the missing ones, writes one result."""

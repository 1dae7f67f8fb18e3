"""The evaluate stage: measure what was generated, count what was not, write one result."""

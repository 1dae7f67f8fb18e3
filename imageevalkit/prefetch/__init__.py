"""``bash utils/prefetch.sh``: everything that models and benchmarks need from outside, got and verified."""

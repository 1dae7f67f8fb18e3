"""The commands of ``bash eval.sh``."""

"""Optional features. Each folder can be deleted."""

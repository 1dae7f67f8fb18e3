"""Stand-in for diffusers."""

"""Statistics on scores."""

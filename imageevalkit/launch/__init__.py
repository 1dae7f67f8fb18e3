"""From options to one plan, and the launchers that run it."""

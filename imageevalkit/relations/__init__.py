"""How the scores of two metrics on the same images relate: synergy, bottleneck, tilt or dispersion, as TRIG has it."""

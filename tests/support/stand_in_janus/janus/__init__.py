"""Stand-in for the package of deepseek-ai/Janus: its interface, with whole numbers that bfloat16 holds exactly."""

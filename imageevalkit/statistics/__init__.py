"""What result files can decide: comparing models on the same prompts, groups that cannot be told apart, power.

Runs in the driver's environment. numpy, scipy and statsmodels take seconds to import: where they are used, not here.
"""

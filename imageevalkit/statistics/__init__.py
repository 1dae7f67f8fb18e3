"""Statistics on result files: comparisons on the same prompts, groups of equal models, and power.

The code runs in the driver's environment. numpy, scipy and statsmodels take seconds to import, so each
function imports them where it uses them.
"""

"""Compare two results from their files alone: changes (``--compare``) and fallen scores (``--gate``).

The code runs in the driver's environment and starts no model or judge."""

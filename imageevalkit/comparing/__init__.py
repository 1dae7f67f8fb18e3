"""Two results against each other, from their files alone: what moved (``--compare``), and whether a score fell
(``--gate``). Runs in the driver's environment, and runs nothing itself."""

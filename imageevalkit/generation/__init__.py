"""The generate stage: finds the images left to generate, and generates them."""

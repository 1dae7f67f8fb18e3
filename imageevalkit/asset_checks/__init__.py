"""Whether an asset is whole on this machine: from files alone, with the standard library alone."""

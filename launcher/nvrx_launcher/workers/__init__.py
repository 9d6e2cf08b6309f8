"""The workers of a node: what they run, where they print, and the monitors beside them."""

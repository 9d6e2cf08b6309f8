"""The workers of a node: their commands, their output, and their rank monitors."""

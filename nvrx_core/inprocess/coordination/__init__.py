"""How the ranks of a call agree: operations on the control store, connections to it, the way into a generation."""

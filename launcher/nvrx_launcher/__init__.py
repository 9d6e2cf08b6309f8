"""ft_launcher: starts the ranks of a node, watches them, and restarts them; a torchrun that recovers."""

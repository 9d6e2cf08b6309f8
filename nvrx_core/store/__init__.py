"""The control store: torch's stores, where they are hosted, and the keys nvrx keeps in them."""

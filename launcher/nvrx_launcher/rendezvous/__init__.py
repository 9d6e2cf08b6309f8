"""The nodes of a cycle, as one coordinator decides, and the communication of nodes and coordinator."""

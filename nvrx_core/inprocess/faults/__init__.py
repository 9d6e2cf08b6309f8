"""The faults of this rank: how they are recorded, announced to the other ranks and logged."""

"""Liveness: hang detection, leases, the awake time of an observer, the progress of peers. Pure."""

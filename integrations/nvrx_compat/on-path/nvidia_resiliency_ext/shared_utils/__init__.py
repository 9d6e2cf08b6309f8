"""nvrx's `inject_fault` and `wait_daemon`."""

"""Processes as the kernel sees them: how they are started, watched and ended, and the sockets they hold."""

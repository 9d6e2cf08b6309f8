"""What happened in a job: each rank appends JSON lines to a file of its own, from which one timeline is made."""

"""Event files: each rank appends JSON lines to its own file, from which one timeline of the job is computed."""

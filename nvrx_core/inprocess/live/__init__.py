"""Training state that survives a restart in memory."""

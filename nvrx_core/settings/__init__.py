"""Settings: the parameters and the environment variables that the core reads."""

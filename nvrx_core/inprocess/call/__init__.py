"""One call of a wrapped function, in the main thread: its resources, and the ports of its flow."""

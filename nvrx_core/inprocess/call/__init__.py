"""One call of a wrapped function, in the main thread: what it needs, and what it runs."""

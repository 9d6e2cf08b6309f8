"""One call of a wrapped function, in the main thread: its resources and the effects that it carries out."""

"""The names of nvidia-resiliency-ext, for code that is written against them; no logic of their own."""

"""Which nodes take part in a cycle, decided by one coordinator; and how nodes and coordinator talk."""

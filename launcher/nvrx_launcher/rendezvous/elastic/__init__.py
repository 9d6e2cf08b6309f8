"""The coordinator's rendezvous as a backend for torch elastic agents."""

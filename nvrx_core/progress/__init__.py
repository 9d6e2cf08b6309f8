"""The progress of a rank, in memory that it shares with its monitor."""

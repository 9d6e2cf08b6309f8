"""The monitor process: watches one rank from outside and reports its death."""

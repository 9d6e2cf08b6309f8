"""The configuration of a call: what the user has written, checked before anything is started."""

"""The programs that the tests run as ranks."""

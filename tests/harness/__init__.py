"""Infrastructure of the tests; contains no tests."""

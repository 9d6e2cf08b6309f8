"""What the tests are built on; no test is in here."""

"""What the callback does: it reports to the rank monitor, learns timeouts, and knows how a fit has ended."""

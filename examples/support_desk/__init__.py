"""A support desk's agent: it looks orders up, cancels, refunds and redirects them in a real order database."""

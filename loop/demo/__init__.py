"""The embedded demonstration: a small model that is taught to call tools, and the loop run on it end to end."""

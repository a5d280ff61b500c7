"""Modules that attack: each is a test that says what did not happen, and that everything else still works."""

"""Runs in the formats that others read."""

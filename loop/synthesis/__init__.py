"""Synthesis: from what was recorded to environments that train one capability."""

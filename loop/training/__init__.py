"""Adapters are trained here: a supervised warm start, then GRPO on episodes that the served model plays."""

"""Agents of the kind a team already has, with TRACE added to them."""

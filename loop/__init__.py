"""What improves an agent: analysis, synthesis, training, evaluation, promotion, commands."""

"""What the agent lacks: labels, the contrast of failures with successes, and the history of what was found."""

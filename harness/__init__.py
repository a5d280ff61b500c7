"""What runs an agent: environment contract, episodes, scoring, admission, serving."""

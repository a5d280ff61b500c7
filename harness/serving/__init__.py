"""What serves a policy: the vLLM process, the gateway in front of it, and the adapters that they load."""

"""The LLM analyst: discovers capabilities and labels runs with any provider, under the detectors' contract."""

from loop.analysis.analyst.analyst import Analyst
from loop.analysis.analyst.client import Client, LiteLLMClient, Reply

__all__ = ["Analyst", "Client", "LiteLLMClient", "Reply"]

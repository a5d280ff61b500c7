"""Generated environments: modules that a model writes from the evidence, and that admission judges. See `generate`."""

from loop.synthesis.generated.brief import Brief, brief_of
from loop.synthesis.generated.generate import Attempt, generate
from loop.synthesis.generated.module import FORMAT, open_spec, spec_of

__all__ = ["FORMAT", "Attempt", "Brief", "brief_of", "generate", "open_spec", "spec_of"]

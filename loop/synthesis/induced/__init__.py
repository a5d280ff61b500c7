"""Induced environments: from trajectories alone, without a model. See `induce`."""

from loop.synthesis.induced.environment import Difficulty, InducedEnvironment
from loop.synthesis.induced.evidence import EvidenceReport
from loop.synthesis.induced.induce import induce

__all__ = ["Difficulty", "EvidenceReport", "InducedEnvironment", "induce"]

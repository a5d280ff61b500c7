"""What the agent lacks: labels, the contrast of failures with successes, and the history of what was found."""

from loop.analysis.analyze import AnalysisReport, Finding, analyze, analyze_runs, lacking_runs

__all__ = ["AnalysisReport", "Finding", "analyze", "analyze_runs", "lacking_runs"]

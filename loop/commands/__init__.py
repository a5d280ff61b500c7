"""The command line: one module for each `trace-sdk` command."""

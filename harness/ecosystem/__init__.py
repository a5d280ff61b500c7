"""Our environments where other frameworks expect theirs: one small module each, all on the one `seat`.

None of them is imported by the rest of the project, and none of their packages is a dependency of it.
"""

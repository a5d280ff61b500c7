"""Write a new revision from the difference between the tables and the revisions so far."""

import sys

from sqlalchemy import create_engine

from storage.migrations import runner


def main(message: str) -> None:
    """Migrate an empty database in memory, compare it with the tables, write the difference as a revision."""
    number = f"{int(runner.head() or 0) + 1:04}"
    with create_engine("sqlite://").connect() as connection:
        if runner.head():
            runner.upgrade(connection)
        runner.revise(connection, message, number)
    print(f"now set HEAD to {number!r} in storage/migrations/__init__.py")


if __name__ == "__main__":
    main(sys.argv[1])

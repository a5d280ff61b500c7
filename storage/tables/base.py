"""What all tables share: a catalogue of their own, names for constraints, the type of JSON columns."""

from typing import Any

from sqlalchemy import JSON, MetaData
from sqlmodel import Field, SQLModel


class Row(SQLModel):
    """The base of every table. Migrations refer to constraints by the names given here."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def json_field() -> Any:
    """A nullable JSON column. None is SQL's NULL, not JSON's null, so that `IS NULL` means what it says.

    A value changed in place is not noticed; assign a new one.
    """
    return Field(default=None, sa_type=JSON(none_as_null=True), nullable=True)  # type: ignore[call-overload]

"""What a job runs on, for people: Spark's release, its settings, its own pages. Driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "******"
#: In values too: an option of Java's may hold one. Hadoop's keys to storage are called account.key, encryption.key, ...
_SECRET_WORDS = r"secret|password|passwd|passphrase|token|credential|(access|account|private|encryption|api)[._-]?key"
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)


def spark_settings(session: SparkSession) -> dict[str, str]:
    """Those that were given and those that Tidegate sets; values that may be secrets are hidden."""
    given = dict(session.sparkContext.getConf().getAll())
    return {key: shown_value(key, value) for key, value in sorted(given.items())}


def shown_value(key: str, value: str) -> str:
    return SECRET if _SECRET_NAME.search(key) or _SECRET_NAME.search(value) else value


def spark_pages(session: SparkSession) -> str | None:
    """The address of Spark's own pages; None where they are off."""
    address: str | None = session.sparkContext.uiWebUrl
    return address

"""The packages of the optional extras. Who needs one checks it where the job is built, so that a missing one is said with the
user's line, before Spark is started. Driver and executors.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from tidegate.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Extra:
    """One package of one extra."""

    name: str  #: of `tidegate[...]`
    package: str  #: as pip calls it
    module: str
    needed_by: str  #: the message begins with it

    def check(self) -> None:
        """:raises ConfigurationError: when it is not installed. Does not import it."""
        if importlib.util.find_spec(self.module) is None:
            raise self.missing()

    def load(self) -> Any:
        """:raises ConfigurationError: when it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise self.missing() from error

    def missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.needed_by} needs the package {self.package}, here and on every executor: "
            f"pip install 'tidegate[{self.name}]'"
        )


HDFS = Extra("hdfs", "hdfs-native", "hdfs_native", "checkpoint storage in HDFS")
ROCKSDB = Extra("rocksdb", "rocksdict", "rocksdict", "the RocksDB backend")
POSTGRES = Extra("postgres", "psycopg", "psycopg", "the connector of PostgreSQL")
DELTA = Extra("delta", "deltalake", "deltalake", "DeltaSink")
MYSQL = Extra("mysql", "PyMySQL", "pymysql", "the connector of MySQL and MariaDB")
KAFKA = Extra("kafka", "confluent-kafka", "confluent_kafka", "a Kafka source or sink")
ALL = (HDFS, ROCKSDB, POSTGRES, DELTA, MYSQL, KAFKA)

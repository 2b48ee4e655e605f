"""Where YARN's resource manager is, as the user's Hadoop settings say. Driver.

Spark asks it for a quarter of an hour before it gives up, and says nothing meanwhile.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.errors import ConfigurationError, SparkUnavailable

VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
PORT = 8032
_PREFIX = "yarn.resourcemanager."


def resource_managers(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    """Their addresses; none, if it takes Hadoop itself to find them out.

    :raises SparkUnavailable: when the environment names no settings. :raises ConfigurationError: when they cannot be read.
    """
    folders = [Path(environment[name]) for name in VARIABLES if environment.get(name)]
    if not folders:
        raise SparkUnavailable(
            "the master is yarn, and nothing says where YARN is: set HADOOP_CONF_DIR to the folder with its yarn-site.xml",
            master="yarn",
        )
    site = next((folder / "yarn-site.xml" for folder in folders if (folder / "yarn-site.xml").is_file()), None)
    if site is None:
        raise SparkUnavailable(
            f"the master is yarn, and there is no yarn-site.xml in {' or '.join(map(str, folders))} (HADOOP_CONF_DIR)",
            master="yarn",
        )
    return list(_addresses(_properties(site)))


def _addresses(properties: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    ids = [f".{id.strip()}" for id in properties.get(f"{_PREFIX}ha.rm-ids", "").split(",") if id.strip()]
    for id in ids or [""]:
        host = properties.get(f"{_PREFIX}hostname{id}", "")
        address = properties.get(f"{_PREFIX}address{id}", f"{host}:{PORT}" if host else "")
        host, _, port = address.rpartition(":")
        if host and port.isdecimal() and "${" not in host:
            yield host, int(port)


def _properties(site: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(site).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigurationError(f"{site} cannot be read: {error}") from error
    return {
        (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip() for each in root.iter("property")
    }

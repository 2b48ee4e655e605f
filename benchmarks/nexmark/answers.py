"""Answers as bags of rows that can be compared, whoever gave them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import duckdb
import events
from queries import Query


def plain(cell: Any) -> Any:
    """Numbers as numbers, whether they came as such or as text; decimals as far as all sides agree."""
    if isinstance(cell, bool):
        return cell
    text = str(cell)
    try:
        return int(text)
    except ValueError:
        try:
            return float(f"{float(text):.9g}")
        except ValueError:
            return text


def row(cells: Iterable[Any] | dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plain(cell) for cell in (cells.values() if isinstance(cells, dict) else cells))


def newest(query: Query, rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    """What counts of rows in the order in which they were emitted."""
    found = [row(cells) for cells in rows]
    if query.summed:
        totals: Counter[tuple[Any, ...]] = Counter()
        for each in found:
            totals[tuple(each[place] for place in query.key)] += each[-1]
        return Counter((*key, total) for key, total in totals.items())
    if query.key:
        return Counter({tuple(each[place] for place in query.key): each for each in found}.values())
    return Counter(found)


def by_duckdb(query: Query, count: int) -> Counter[tuple[Any, ...]]:
    connection = duckdb.connect()
    for name, table in events.tables(count).items():
        connection.register(name, table)
    return Counter(row(cells) for cells in connection.sql(query.sql).fetchall())

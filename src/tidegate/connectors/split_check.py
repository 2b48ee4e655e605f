"""Splits as a checkpoint keeps them, or the reason why it cannot. On the driver for those that a source finds, on executors
for each snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidegate.connectors.contract import Source, SourceReader, Split
from tidegate.errors import ConfigurationError
from tidegate.storage.json_values import NotJson, json_copy
from tidegate.storage.metadata import SplitState


def kept_splits(splits: Sequence[Split], of: Source | SourceReader) -> list[SplitState]:
    """Positions are copies: the snapshot is stored while the reader continues, and may change what it has handed out.

    :raises ConfigurationError: naming the first split that a checkpoint cannot keep, and what to write in the user's class.
    """
    wrong = next((split for split in splits if type(split.id) is not str or type(split.finished) is not bool), None)
    if wrong is not None:
        raise _refused(wrong, of)
    if len({split.id for split in splits}) < len(splits):
        raise _refused_twice(splits, of)
    try:
        copies = json_copy([[split.id, split.position] for split in splits])  # all at once: there may be many thousands
    except NotJson:
        raise _refused(next(filter(_is_refused, splits)), of) from None
    return [SplitState(id, position, split.finished) for (id, position), split in zip(copies, splits, strict=True)]


def _refused_twice(splits: Sequence[Split], of: Source | SourceReader) -> ConfigurationError:
    """A checkpoint has one position for each id: of two splits one would be read on, and the other lost or read again."""
    twice = next(id for id, count in Counter(split.id for split in splits).items() if count > 1)
    return ConfigurationError(
        f"{type(of).__qualname__} names two splits {twice!a}: an id stands for one part of the input, for ever.",
        split=ascii(twice),
    )


def _is_refused(split: Split) -> bool:
    try:
        json_copy([[split.id, split.position]])
    except NotJson:
        return True
    return False


def _refused(split: Split, of: Source | SourceReader) -> ConfigurationError:
    return ConfigurationError(f"{type(of).__qualname__} {_fault_of(split)}", split=ascii(split.id))


def _fault_of(split: Split) -> str:
    if type(split.id) is not str:
        return f"names a split {split.id!a}: an id is text, write str(id)."
    try:
        json_copy(split.id)
    except NotJson as error:
        return f"names a split that no checkpoint can keep: {error}."
    if type(split.finished) is not bool:
        return f"gives the split {split.id!r} finished={split.finished!a}: it must be True or False."
    try:
        json_copy(split.position)
        why = "it is nested too deeply"
    except NotJson as error:
        why = str(error)
    return (
        f"gives the split {split.id!r} a position that no checkpoint can keep: {why}. Positions are stored as JSON, so that a "
        "savepoint can be read and edited by anyone: None, True, False, numbers, text, lists, and dicts with text as keys."
    )

"""What a terminal shows after a stream of text: as much of one as rich's live displays need."""

from __future__ import annotations

import re

_PIECES = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|(.)", re.DOTALL)


class TerminalScreen:
    """Lines without an end above, the cursor, and a last column in which the cursor stays until the next letter."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: list[str] = [""]
        self._row, self._column = 0, 0

    def feed(self, text: str) -> None:
        for numbers, command, control, letter in _PIECES.findall(text):
            if letter:
                self._put(letter)
            elif control == "\r":
                self._column = 0
            elif control == "\n":  # a tty makes it a carriage return too
                self._to_next_row()
            elif command == "A":
                self._row = max(0, self._row - int(numbers or 1))
            elif command == "K":
                assert numbers == "2", "only whole lines are erased"
                self._rows[self._row] = ""

    def _put(self, letter: str) -> None:
        if self._column == self._width:
            self._to_next_row()
        row = self._rows[self._row].ljust(self._column)
        self._rows[self._row] = row[: self._column] + letter + row[self._column + 1 :]
        self._column += 1

    def _to_next_row(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append("")

    @property
    def lines(self) -> list[str]:
        return [row.rstrip() for row in self._rows]

"""Random texts of process_element, as users write them: state, fields, branches, loops, helpers, side outputs, timestamps.

A body may fail, at a known line, and may do what no loop follows. What is right, calling it record by record says.
"""

from __future__ import annotations

import random

HEAD = """\
import math
from contextlib import suppress
from dataclasses import dataclass

import tidegate as tg

TAG = tg.OutputTag("odd", int)
LIMIT = 40


@dataclass
class Sale:
    item: {key}
    amount: int
    note: str


def shorten(text):
    return text[:3]


def make(step):
    class Function(tg.KeyedProcessFunction):
        total = tg.ValueState(int, default=0)
        last = tg.ValueState(str)
        rate = tg.ValueState(float, default=1.5)
        notes = tg.ListState(str)
        extra = tg.ValueState(int, default=100)

        def helper(self, n):
            self.total.set(self.total.get() + n)
            return self.total.get()

        def process_element(self, e, ctx):
"""


def text_of(body: list[str], key: str = "str") -> str:
    """A module with a function that has these lines."""
    lines = "".join(f"            {line}\n" for line in body)
    return HEAD.replace("{key}", key) + lines + "\n    return Function()\n"


class Body:
    def __init__(self, seed: int, shape: str) -> None:
        self.random = random.Random(seed)
        self.shape = shape
        self.names: list[str] = []
        self.returns = self.random.random() < 0.3
        self.text = self._written()

    def _written(self) -> str:
        lines = []
        if self.shape == "tuple" and self.random.random() < 0.3:
            lines.append("item, amount, note = e")
        lines += self._block(self.random.randint(2, 5), 0)
        lines.append(f"return [{self._pair()}]" if self.returns else f"yield {self._pair()}")
        return text_of(lines, "str" if self.random.random() < 0.5 else "int")

    def _field(self, name: str) -> str:
        at = ("item", "amount", "note").index(name)
        return {"dataclass": f"e.{name}", "tuple": f"e[{at}]", "schema": f'e["{name}"]'}[self.shape]

    def _number(self) -> str:
        made = [
            self._field("amount"), "self.total.get()", "self.total.value()", str(self.random.randint(-9, 9)), "step",
            f"len({self._field('note')})", "LIMIT", "max(self.total.get(), 3)", "math.floor(7.5)",
        ]  # fmt: skip
        if self.random.random() < 0.15:
            made = [
                "self.helper(2)",
                "sum([n * n for n in range(3)])",
                "(ctx.timestamp() or 7)",
                "len(list(self.notes))",
            ]
        found = self.random.choice([*made, *self.names, *self.names])
        return found if self.random.random() < 0.6 else f"({found} {self.random.choice('+-*')} {self._number()})"

    def _text(self) -> str:
        note = self._field("note")
        return self.random.choice(
            [note, f"shorten({note})", "(self.last.get() or 'none')", "str(ctx.key)", f"{note} + '!'"]
        )

    def _condition(self) -> str:
        return self.random.choice(
            [f"{self._number()} > {self._number()}", f"{self._field('amount')} % 3 == 0", "self.last.get() is None"]
        )

    def _pair(self) -> str:
        whole = "str(e)" if self.random.random() < 0.1 else self._text()
        return f"({whole}, {self._number()})"

    def _block(self, count: int, depth: int) -> list[str]:
        return [line for _ in range(count) for line in self._statement(depth)]

    def _statement(self, depth: int) -> list[str]:
        kinds = [
            "total",
            "total",
            "last",
            "rate",
            "assign",
            "yield",
            "notes",
            "clear",
            "if",
            "if",
            "for",
            "side",
            "odd",
        ]
        kind = self.random.choice(kinds if depth < 2 else kinds[:8])
        match kind:
            case "total":
                return [f"self.total.{self.random.choice(['set', 'update'])}({self._number()})"]
            case "last":
                return [f"self.last.set({self._text()})"]
            case "rate":
                return [f"self.rate.set({self.random.choice(['self.rate.get() / 2', '3', self._number()])})"]
            case "assign":
                name = f"n{len(self.names)}"
                line = f"{name} = {self._number()}"
                self.names.append(name)
                return [line, *([f"{name} += 1"] if self.random.random() < 0.3 else [])]
            case "yield":
                return [] if self.returns else [f"yield {self._pair()}"]
            case "notes":
                return [f"self.notes.add({self._text()})"] if self.random.random() < 0.5 else []
            case "clear":
                return ["self.last.clear()"]
            case "side":
                return [f"ctx.output(TAG, {self._number()})"]
            case "odd":
                return self._odd()
            case "for":
                return [f"for i in range({self.random.randint(0, 3)}):", *self._inside(depth)]
        lines = [f"if {self._condition()}:", *self._inside(depth)]
        if self.random.random() < 0.3:
            lines.append("    return" if not self.returns else "    return None")
        return lines + (["else:", *self._inside(depth)] if self.random.random() < 0.4 else [])

    def _inside(self, depth: int) -> list[str]:
        known = list(self.names)
        lines = self._block(self.random.randint(1, 2), depth + 1)
        if self.random.random() < 0.85:
            self.names = known  # else a variable may not be there
        return [f"    {line}" for line in lines] or ["    pass"]

    def _odd(self) -> list[str]:
        """What is seldom written, or wrong."""
        number, chance = self._number(), self.random.random()
        if chance < 0.2:
            return [f"if {number} > 60:", "    raise ValueError(f'too much: {e}')"]
        if chance < 0.3:
            return [f"self.total.set({number} << 70)"]
        if chance < 0.4:
            return ["self.rate.set('fast')"]
        if chance < 0.5:
            return ["f = lambda: e", "self.last.set(str(f()))"]
        if chance < 0.6 and not self.returns:
            return ["yield from [('many', 1), ('more', 2)]"]
        if chance < 0.7:
            return [
                "try:",
                f"    x = 1 // ({number})",
                "except ZeroDivisionError as error:",
                "    self.last.set(str(error))",
            ]
        if chance < 0.8 and not self.returns:
            return ["yield TAG, 5"]
        if chance < 0.95:
            return self._emitted_where_it_may_fail()
        return ["assert ctx.key is not None"]

    def _emitted_where_it_may_fail(self) -> list[str]:
        """In a try, or in a with that takes errors away: half of it may be made by then, and something else leaves."""
        value = f"({self._text()}, 1 // ({self._number()}))"
        if not self.returns:
            emits = f"yield {value}"
        else:
            emits = f"return [{self._pair()}, {value}]" if self.random.random() < 0.5 else f"return [{value}]"
        if self.random.random() < 0.3:
            return ["with suppress(ZeroDivisionError):", f"    {emits}"]
        lines = ["try:", f"    {emits}", "except ZeroDivisionError:", "    self.total.set(0)"]
        return lines + (["finally:", f"    {emits}"] if self.random.random() < 0.3 else [])

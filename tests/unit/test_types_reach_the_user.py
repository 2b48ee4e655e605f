"""What a type checker sees of the API in a user's program: records keep their types, and a wrong one is found where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: A line that ends in "# wrong" must be refused, and no other.
PROGRAM = """
from collections.abc import Iterator
from dataclasses import dataclass

import tidegate as tg


@dataclass
class Order:
    customer: str
    amount: int


class Totals(tg.KeyedProcessFunction[Order, tuple[str, int]]):
    total = tg.ValueState(int, default=0)

    def process_element(self, order: Order, ctx: tg.Context) -> Iterator[tuple[str, int]]:
        self.total.set(self.total.get() + order.amount)
        self.total.set("many")  # wrong
        yield order.customer, self.total.get()

    def on_timer(self, timestamp: int, context: tg.Context) -> Iterator[tuple[str, int]]:
        yield context.get_current_key(), self.total.get() + timestamp


class Shouted(tg.MapFunction[str, str]):
    def map(self, word: str) -> str:
        return word.upper()


class Untyped(tg.ProcessFunction):
    def process_element(self, anything, ctx):
        yield anything


env = tg.StreamEnvironment("orders")
orders = env.from_collection([Order("ann", 3)], uid="orders", type=Order)
amounts = orders.filter(lambda order: order.amount > 0).map(lambda order: order.amount)
amounts.map(lambda amount: amount.upper())  # wrong
reveal = amounts.rebalance().map(lambda amount: amount + 1)
words = orders.flat_map(lambda order: order.customer.split())
words.map(Shouted()).uid("shouted").map(lambda word: word + 1)  # wrong
amounts.map(Shouted())  # wrong
by_customer = orders.key_by(lambda order: order.customer)
totals = by_customer.process(Totals(), uid="totals")
totals.map(lambda pair: pair[0] + pair[1])  # wrong
words.key_by(lambda word: word).process(Totals())  # wrong
by_customer.count().map(lambda pair: pair[0].upper() * pair[1])
by_customer.max_by("amount").map(lambda order: order.customer)
by_customer.reduce(lambda one, other: one.amount + other.amount)  # wrong
ones = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0])
ones.reduce(lambda one, other: (one[0], one[1] + other[1])).map(lambda pair: pair[0] + pair[1])  # wrong
anything = words.process(Untyped()).map(lambda value: value.whatever)
with totals.execute_and_collect() as rows:
    for customer, total in rows:
        customer.upper()
        total.upper()  # wrong
first: list[tuple[str, int]] = totals.execute_and_collect(limit=3)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What pyright says, by file and line, of the program above, of README's first job and of the examples: one look for all.

    basedpyright is pyright with its node.js in the wheel: nothing is fetched when it runs.
    """
    folder = tmp_path_factory.mktemp("programs")
    planted, readme = folder / "planted.py", folder / "readme_job.py"
    planted.write_text(PROGRAM)
    readme.write_text((ROOT / "README.md").read_text().split("```python\n", 1)[1].split("```", 1)[0])
    programs = [planted, readme, *sorted((ROOT / "examples").glob("*.py"))]
    settings = {"include": list(map(str, programs)), "typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")]}
    settings["reportPrivateImportUsage"] = False  # Kafka's client re-exports NewTopic without saying so
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    home = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=home, capture_output=True, text=True, timeout=170)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(programs), done.stderr
    found: dict[str, dict[int, str]] = {path.name: {} for path in programs}
    for line in answer["generalDiagnostics"]:
        found[Path(line["file"]).name][line["range"]["start"]["line"] + 1] = line["message"]
    return found


def test_a_wrong_type_in_a_job_is_found_where_it_is_and_nothing_else(said: dict[str, dict[int, str]]) -> None:
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}

    assert set(said["planted.py"]) == wrong, said["planted.py"]


def test_the_readmes_job_and_the_examples_are_clean(said: dict[str, dict[int, str]]) -> None:
    assert {name: lines for name, lines in said.items() if lines and name != "planted.py"} == {}

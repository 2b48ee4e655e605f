"""In every test here the invariants of the machines are asserted after each event, those of whole jobs too; and functions are
written into loops for the smallest batch, because batches are small here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.protocol.checkpointing import CheckpointScheduler
from tidegate.protocol.slot_machine import SlotMachine


def validated(on: Callable[..., Any]) -> Callable[..., Any]:
    def on_and_validate(machine: Any, *event: Any) -> Any:
        actions = on(machine, *event)
        machine.validate()
        return actions

    return on_and_validate


@pytest.fixture(autouse=True, scope="session")
def machines_are_validated() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for machine in (CheckpointScheduler, SlotMachine):
            patch.setattr(machine, "on", validated(machine.on))
        patch.setattr("tidegate.task.operators.process.WORTH_A_LOOP", 1)
        yield

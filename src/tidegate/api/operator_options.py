"""What can be said of an operator after it was made, in PyFlink's way. Driver; changes the logical graph, runs nothing.

    stream.map(parse).uid("parse").name("parse the lines").set_parallelism(2)

says what `stream.map(parse, uid="parse", name="parse the lines", parallelism=2)` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tidegate.api.building import check_positive
from tidegate.graph.logical import Chaining
from tidegate.ids import OperatorUid

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment


class OperatorOptions:
    """Of a stream or a sink that comes from one operator."""

    _env: StreamEnvironment

    def _made_by(self, option: str) -> OperatorUid:
        """The operator. :raises GraphError: where there is not one alone; `option` is what the user has called."""
        raise NotImplementedError

    def uid(self, uid: str) -> Self:
        """The name by which its state is found again, in every checkpoint and savepoint."""
        self._env._graph.rename(self._made_by("uid"), OperatorUid(uid))
        return self

    def name(self, name: str) -> Self:
        """As displays and messages call it."""
        self._env._graph.change(self._made_by("name"), name=name)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """In how many subtasks it runs."""
        uid = self._made_by("set_parallelism")
        check_positive(parallelism, "parallelism", uid)
        self._env._graph.change(uid, parallelism=parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """The most that it can ever be rescaled to: the number of key groups of its state."""
        uid = self._made_by("set_max_parallelism")
        check_positive(max_parallelism, "max_parallelism", uid)
        self._env._graph.change(uid, max_parallelism=max_parallelism)
        return self

    def disable_chaining(self) -> Self:
        """It never shares a subtask with its neighbours, so that it is measured apart. Costs two exchanges."""
        self._env._graph.change(self._made_by("disable_chaining"), chaining=Chaining.NEVER)
        return self

    def start_new_chain(self) -> Self:
        """It does not share a subtask with the operator before it; those after it may share its own. Costs an exchange."""
        self._env._graph.change(self._made_by("start_new_chain"), chaining=Chaining.HEAD)
        return self

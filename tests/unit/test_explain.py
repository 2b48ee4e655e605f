"""The plan of a job as text."""

from __future__ import annotations

from textwrap import dedent

import tidegate as tg


def pair(number: int) -> tuple[int, int]:
    return number % 3, number


def test_the_plan_shows_layers_chains_edges_types_and_slots() -> None:
    env = tg.StreamEnvironment("sums", parallelism=2)
    numbers = env.from_sequence(1, 100, uid="numbers", parallelism=1)
    numbers.map(pair, parallelism=1).key_by(0).sum(1, uid="sums").print(uid="printed")

    assert env.explain() == dedent(
        """\
        job sums: 2 layers, 3 slots needed at once

        layer 0: 1 slot
          chain, parallelism 1, slot 0.0
            sequence (uid numbers): bounded source, emits int
              map pair: emits tuple[int, int], record by record
                => sum 1 (uid sums): hash by f0, tuple[int, int]

        layer 1: 2 slots
          chain, parallelism 2, all slots of layer 1
            sum 1 (uid sums): keyed, max parallelism 128, emits tuple[int, int], by columns
              print (uid printed): sink, at-least-once

        Record by record, slower than by columns:
          map pair: calls your function for each record. Filter, select and with_columns take Arrow expressions, map_batches a function over columns.
        """  # noqa: E501
    )


def test_untyped_streams_and_unreplayable_sources_are_marked() -> None:
    env = tg.StreamEnvironment("lines")
    lines = env.from_source(tg.SocketText("host", 1), uid="lines")
    lines.map(lambda line: object()).collect(uid="kept")

    text = env.explain()
    assert "SocketText (uid lines): unbounded source, NOT REPLAYABLE, emits str" in text
    assert "map: emits UNTYPED" in text
    assert "collect (uid kept): sink, exactly-once" in text
    assert "UNTYPED streams travel as pickled rows, several times slower than columns: map." in text


def test_an_edge_that_skips_a_layer_shows_who_relays_it() -> None:
    env = tg.StreamEnvironment("skip")
    numbers = env.from_sequence(1, 9, uid="numbers").map(pair)
    counted = numbers.key_by(0).count(uid="counts")
    numbers.union(counted).key_by(0).count(uid="all").print(uid="out")

    text = env.explain()
    assert "3 layers, 3 slots needed at once" in text
    assert "  relays numbers~map pair to all" in text


def test_narrow_chains_of_a_wide_layer_name_their_slots() -> None:
    env = tg.StreamEnvironment("wide", parallelism=3)
    env.from_sequence(1, 9, uid="a", parallelism=2).collect(uid="x")
    env.from_sequence(1, 9, uid="b", parallelism=2).print(uid="y")
    env.from_sequence(1, 9, uid="c").broadcast().map(pair).print(uid="z")

    text = env.explain()
    assert "collect (uid x)" in text
    assert ": broadcast, int" in text
    assert "parallelism 2, slots 0." in text


def test_the_parallelism_of_the_command_line_counts() -> None:
    from dataclasses import replace

    from tidegate.overrides import overriding

    env = tg.StreamEnvironment("p", parallelism=1)
    env.from_sequence(1, 9, uid="numbers").print(uid="out")
    with overriding(lambda config: replace(config, parallelism=4)):
        assert "4 slots needed at once" in env.explain()
    assert "1 slot needed at once" in env.explain()

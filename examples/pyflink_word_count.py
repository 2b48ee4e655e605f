"""A word count as one writes it for PyFlink. Of such a program only the import has changed.

.venv/bin/python examples/pyflink_word_count.py
"""

from tidegate.pyflink import StreamExecutionEnvironment, Types

LINES = ["the tide comes in", "the tide goes out", "and the gate stays shut"]


def split(line):
    yield from line.split()


def word_count():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)

    lines = env.from_collection(LINES, type_info=Types.STRING()).name("lines")

    counts = (
        lines.flat_map(split, output_type=Types.STRING())
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
        .name("counts")
    )

    counts.print()
    env.execute()


if __name__ == "__main__":
    word_count()

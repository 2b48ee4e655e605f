"""Counts the words that come over a socket. In one terminal: nc -lk 9999; in another:

    tidegate run examples/word_count.py

Type lines into the first. Kill a worker, or press Ctrl-C and run it again: the counts continue. They begin anew with another
--storage, and must when the first terminal has closed the connection: then the job has finished.
"""

import argparse
from collections.abc import Iterator

import tidegate as tg

parser = argparse.ArgumentParser()
parser.add_argument("--host", default="localhost")
parser.add_argument("--port", type=int, default=9999)
parser.add_argument("--storage", default="file:///tmp/tidegate/checkpoints")
options = parser.parse_args()


def words(line: str) -> Iterator[str]:
    return iter(line.lower().split())


env = tg.StreamEnvironment("word-count", parallelism=2)
env.checkpointing(every="2s", storage=options.storage, resume="latest")

lines = env.from_source(tg.SocketText(options.host, options.port), uid="lines", parallelism=1)
counts = lines.flat_map(words, parallelism=1).key_by(lambda word: word, key_type=str).count(uid="counts")
counts.print(uid="printed")

env.execute()

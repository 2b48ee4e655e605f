"""The smallest job: words of a list, counted.

    python examples/hello.py

Nothing is stored and nothing is left behind.
"""

import tidegate as tg

LINES = ["the river never stops", "the gate holds it back", "until the tide has caught up"]

env = tg.StreamEnvironment("hello")
words = env.from_collection(LINES, type=str).flat_map(str.split, returns=str)
words.key_by(lambda word: word, key_type=str).count().print()

env.execute()

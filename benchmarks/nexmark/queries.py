"""Nexmark's queries in SQL, over tables `person`, `auction` and `bid`: what each has to answer, by DuckDB, and what Flink runs.

Times are milliseconds since the epoch. `key` names the columns of a result that is updated: only its newest row for each key
counts. Without a key every row does. Where Flink needs other words, `flink` has them: its tables also have `rowtime` and
`proctime`.
"""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000
WINDOW_MS = 10_000
SLIDE_MS = 2_000
GAP_MS = 10_000

TUMBLE = "TUMBLE(TABLE {0}, DESCRIPTOR(rowtime), INTERVAL '10' SECOND)"  #: Flink's
START = "UNIX_TIMESTAMP(CAST({0}.window_start AS STRING)) * 1000"
RANKS = """COUNT(*) AS bids,
    COUNT(*) FILTER (WHERE price < 10000) AS rank1,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3"""
DISTINCT = """COUNT(DISTINCT bidder) AS bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    COUNT(DISTINCT auction) AS auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions"""
PART_OF_DAY = """CASE
    WHEN {hour} BETWEEN 8 AND 18 THEN 'day' WHEN {hour} <= 6 OR {hour} >= 20 THEN 'night' ELSE 'other' END"""


@dataclass(frozen=True)
class Query:
    what: str
    sql: str  #: for DuckDB
    flink: str | None = None  #: None: the same words
    key: tuple[int, ...] = ()  #: columns
    summed: bool = False  #: the last column has to be added up for each key: how it is split goes by the clock

    @property
    def for_flink(self) -> str:
        """Its integers divide by /."""
        return (self.sql if self.flink is None else self.flink).replace("//", "/")


QUERIES = {
    "q0": Query("bids as they are", "SELECT auction, bidder, price, ts, extra FROM bid"),
    "q1": Query("dollars to euros", "SELECT auction, bidder, 0.908e0 * price AS price, ts, extra FROM bid"),
    "q2": Query("bids of some auctions", "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
    "q3": Query(
        "who sells in category 10 in three states",
        """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
           WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')""",
    ),
    "q4": Query(
        "average closing price of each category",
        """SELECT category, AVG(CAST(price AS DOUBLE)) FROM (
               SELECT a.id, a.category, MAX(b.price) AS price FROM auction a JOIN bid b ON a.id = b.auction
               WHERE b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.category
           ) closed GROUP BY category""",
        key=(0,),
    ),
    "q5": Query(
        "hottest auctions of the last 10 s, every 2 s",
        f"""WITH slid AS (
                SELECT auction, (ts // {SLIDE_MS} - n) * {SLIDE_MS} AS start FROM bid, range({WINDOW_MS // SLIDE_MS}) r(n)
            ), counted AS (SELECT start, auction, COUNT(*) AS n FROM slid GROUP BY start, auction)
            SELECT start, auction, n FROM counted c WHERE n = (SELECT MAX(n) FROM counted d WHERE d.start = c.start)""",
        flink=f"""WITH counted AS (
                SELECT window_start, window_end, auction, COUNT(*) AS n
                FROM HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
                GROUP BY window_start, window_end, auction
            ), most AS (
                SELECT window_start, window_end, MAX(n) AS n FROM counted GROUP BY window_start, window_end
            )
            SELECT {START.format("c")}, c.auction, c.n FROM counted c JOIN most m
            ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.n = m.n""",
    ),
    "q7": Query(
        "highest bid of each 10 s",
        f"""SELECT ts // {WINDOW_MS} * {WINDOW_MS} AS start, auction, bidder, price, ts FROM bid b
            WHERE price = (SELECT MAX(price) FROM bid c WHERE c.ts // {WINDOW_MS} = b.ts // {WINDOW_MS})""",
        flink=f"""WITH most AS (
                SELECT window_start, window_end, MAX(price) AS price FROM {TUMBLE.format("bid")}
                GROUP BY window_start, window_end
            )
            SELECT {START.format("b")}, b.auction, b.bidder, b.price, b.ts FROM {TUMBLE.format("bid")} b JOIN most m
            ON b.window_start = m.window_start AND b.window_end = m.window_end AND b.price = m.price""",
    ),
    "q8": Query(
        "new persons who sell within the same 10 s",
        f"""SELECT DISTINCT p.ts // {WINDOW_MS} * {WINDOW_MS} AS start, p.id, p.name
            FROM person p JOIN auction a ON p.id = a.seller AND p.ts // {WINDOW_MS} = a.ts // {WINDOW_MS}""",
        flink=f"""WITH p AS (
                SELECT id, name, window_start, window_end FROM {TUMBLE.format("person")}
                GROUP BY id, name, window_start, window_end
            ), a AS (
                SELECT seller, window_start, window_end FROM {TUMBLE.format("auction")}
                GROUP BY seller, window_start, window_end
            )
            SELECT {START.format("p")}, p.id, p.name FROM p JOIN a
            ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    ),
    "q9": Query(
        "winning bid of each auction",
        """SELECT id, category, bidder, price, ts FROM (
               SELECT a.id, a.category, b.bidder, b.price, b.ts,
                      ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts ASC, b.bidder ASC) AS place
               FROM auction a JOIN bid b ON a.id = b.auction WHERE b.ts BETWEEN a.ts AND a.expires
           ) placed WHERE place = 1""",
        key=(0,),
    ),
    "q11": Query(
        "sessions of each bidder",
        f"""WITH gaps AS (
                SELECT bidder, ts,
                       ts - LAG(ts) OVER (PARTITION BY bidder ORDER BY ts) > {GAP_MS} AS starts FROM bid
            ), numbered AS (
                SELECT bidder, ts, SUM(CASE WHEN starts THEN 1 ELSE 0 END) OVER (
                    PARTITION BY bidder ORDER BY ts RANGE UNBOUNDED PRECEDING) AS session FROM gaps
            ) SELECT bidder, COUNT(*), MIN(ts), MAX(ts) + {GAP_MS} FROM numbered GROUP BY bidder, session""",
        flink=f"""SELECT bidder, COUNT(*), MIN(ts), MAX(ts) + {GAP_MS}
            FROM SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rowtime), INTERVAL '10' SECOND)
            GROUP BY bidder, window_start, window_end""",
    ),
    "q12": Query(
        "bids of each bidder, in 10 s by the clock",
        "SELECT bidder, COUNT(*) FROM bid GROUP BY bidder",
        flink="""SELECT bidder, COUNT(*) FROM TUMBLE(TABLE bid, DESCRIPTOR(proctime), INTERVAL '10' SECOND)
            GROUP BY bidder, window_start, window_end""",
        key=(0,),
        summed=True,
    ),
    "q13": Query(
        "bids beside a bounded table",
        "SELECT auction, bidder, price, 'side ' || CAST(MOD(auction, 10000) AS STRING) FROM bid",
    ),
    "q14": Query(
        "a calculation",
        f"""SELECT auction, bidder, 0.908e0 * price, {PART_OF_DAY.format(hour="ts // 3600000 % 24")}, ts,
                   LENGTH(extra) - LENGTH(REPLACE(extra, '1', ''))
            FROM bid WHERE 0.908e0 * price > 1000000 AND 0.908e0 * price < 50000000""",
        flink=f"""SELECT auction, bidder, 0.908e0 * price, {PART_OF_DAY.format(hour="MOD(`ts` / 3600000, 24)")}, `ts`,
                   CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, '1', ''))
            FROM bid WHERE 0.908e0 * price > 1000000 AND 0.908e0 * price < 50000000""",
    ),
    "q15": Query(
        "bids of each day", f"SELECT ts // {DAY_MS} AS d, {RANKS}, {DISTINCT} FROM bid GROUP BY ts // {DAY_MS}", key=(0,)
    ),
    "q16": Query(
        "bids of each channel and day",
        f"SELECT channel, ts // {DAY_MS} AS d, {RANKS}, {DISTINCT} FROM bid GROUP BY channel, ts // {DAY_MS}",
        key=(0, 1),
    ),
    "q17": Query(
        "bids of each auction and day",
        f"""SELECT auction, ts // {DAY_MS} AS d, {RANKS}, MIN(price), MAX(price), SUM(price)
            FROM bid GROUP BY auction, ts // {DAY_MS}""",
        key=(0, 1),
    ),
    "q18": Query(
        "last bid of each bidder in each auction",
        """SELECT bidder, auction, price, ts FROM (
               SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts DESC, price DESC) AS place FROM bid
           ) placed WHERE place = 1""",
        key=(0, 1),
    ),
    "q19": Query(
        "ten highest bids of each auction",
        """SELECT auction, place, price, bidder FROM (
               SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, bidder ASC) AS place FROM bid
           ) placed WHERE place <= 10""",
        key=(0, 1),
    ),
    "q20": Query(
        "bids with their auction, category 10",
        """SELECT b.auction, b.bidder, b.price, a.item, a.seller FROM bid b JOIN auction a ON b.auction = a.id
           WHERE a.category = 10""",
    ),
    "q22": Query(
        "parts of a URL",
        "SELECT auction, SPLIT_PART(url, '/', 3), SPLIT_PART(url, '/', 4), SPLIT_PART(url, '/', 5) FROM bid",
        flink="SELECT auction, SPLIT_INDEX(url, '/', 2), SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4) FROM bid",
    ),
}  # fmt: skip

"""Numbers, times and sizes as people read them. Pure."""

from __future__ import annotations


def how_many(number: float) -> str:
    if number >= 9_999_500:
        return f"{number / 1e6:,.1f} M"
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}"


def how_long(seconds: float) -> str:
    """Short: "12 ms", "1.4 s", "3 min 05 s", "2 h 03 min". Of a clock that was set back: nothing."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return how_long_whole(seconds)


def how_long_whole(seconds: float) -> str:
    """Without parts of a second, for what is shown all the time."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def how_big(size_bytes: float) -> str:
    """With Flink's units: a kb is 1024 bytes."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} b"
    for unit in ("kb", "mb", "gb"):
        size_bytes /= 1024
        if size_bytes < 999.5:
            return f"{size_bytes:.3g} {unit}" if size_bytes < 99.5 else f"{size_bytes:.0f} {unit}"
    return f"{size_bytes / 1024:.3g} tb"


def how_big_in_all(size_bytes: float, added_bytes: float) -> str:
    """Of a checkpoint: "2 gb", and where it had to store less than its whole, "2 gb, 30 mb new"."""
    return how_big(size_bytes) + (f", {how_big(added_bytes)} new" if added_bytes < size_bytes else "")


def counted(number: int, noun: str) -> str:
    """ "1 restart", "2 restarts"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

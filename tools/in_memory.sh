#!/bin/sh
# Runs a program whose temporary files lie in memory, where the machine has room for that, and are gone afterwards:
#
#     sh tools/in_memory.sh .venv/bin/python -m pytest
#
# Tests write and delete many small files, and each waits for the disk: with a disk the same tests take half as long again. That
# what is written reaches a disk cannot be seen by a test that kills processes, so nothing is lost.
set -eu

ROOM_KB=6291456  # 6 GiB: a whole run has used less than two
MEMORY=/dev/shm

room_kb() {
    df -Pk "$MEMORY" 2>/dev/null | awk 'NR == 2 { print $4 }'
    awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo 2>/dev/null
}

if [ -w "$MEMORY" ] && [ "$(room_kb | sort -n | head -n 1)" -ge "$ROOM_KB" ] 2>/dev/null; then
    TMPDIR=$(mktemp -d "$MEMORY/tidegate-tests.XXXXXX")
    chmod 1777 "$TMPDIR"  # as /tmp is: servers that tests start run as users of their own
    SPARK_LOCAL_DIRS=$TMPDIR
    export TMPDIR SPARK_LOCAL_DIRS
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    "$@"
else
    exec "$@"
fi

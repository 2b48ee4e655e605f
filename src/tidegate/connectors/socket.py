"""Lines of text from a TCP socket, as `nc -lk 9999` serves them. Executor, the task's thread.

Not replayable: a socket cannot be asked again, so a failure loses what was read since the last completed checkpoint.
For demonstrations and tests. Ends when the peer closes the connection; what stands after the last delimiter is a line
too.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.errors import ConfigurationError, ConnectorError

_RECEIVE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 10.0


class SocketText(Source):
    """Text from `host`:`port`, cut at `delimiter`. With the delimiter "\\n" a carriage return before it is dropped.

    :param max_line_bytes: a longer line fails the job; without a bound one peer could fill the memory.
    """

    bounded = False
    replayable = False
    record_type = str

    def __init__(
        self,
        host: str,
        port: int,
        *,
        encoding: str = "utf-8",
        delimiter: str = "\n",
        max_line_bytes: int = 1024 * 1024,
    ) -> None:
        if not delimiter:
            raise ConfigurationError("The delimiter of a socket source must not be empty.")
        if max_line_bytes < 1:
            raise ConfigurationError(f"max_line_bytes must be at least 1; got {max_line_bytes}.")
        if not _keeps_ascii(encoding):
            raise ConfigurationError(
                f"A socket source cuts lines in the bytes, which the encoding {encoding!r} does not allow. "
                "Use one that keeps ASCII as it is, such as utf-8 or latin-1."
            )
        self.host = host
        self.port = port
        self.encoding = encoding
        self.delimiter = delimiter
        self.max_line_bytes = max_line_bytes

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(f"{self.host}:{self.port}")]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _SocketReader(self, context)


class _SocketReader(SourceReader):
    def __init__(self, source: SocketText, context: ReaderContext) -> None:
        self._source = source
        self._clock = context.clock
        self._delimiter = source.delimiter.encode(source.encoding)
        self._drop_carriage_return = source.delimiter == "\n"
        self._split: Split | None = None
        self._socket: socket.socket | None = None  #: None before a split is added and after the peer has closed
        self._selector: selectors.BaseSelector | None = None
        self._unfinished = b""  #: received, after the last delimiter
        self._lines_read = 0
        self._ended = False  #: the peer has closed; a connection that never was, or broke, has not ended

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._split = split
            self._connect()

    def _connect(self) -> None:
        source = self._source
        try:
            self._socket = socket.create_connection((source.host, source.port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ConnectorError(
                f"The socket source cannot connect to {source.host}:{source.port} ({error}). Start the server first, "
                "and check that the executors can reach it under that name.",
                host=source.host,
                port=source.port,
            ) from error
        self._socket.setblocking(False)
        # Not select.select: it refuses file descriptors above 1023, which a worker with many channels can have.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def poll(self, deadline: float) -> list[str] | None:
        while self._socket is not None and self._selector is not None:
            if not self._selector.select(max(0.0, deadline - self._clock())):
                return None
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:  # a wake-up without data
                continue
            except OSError as error:
                raise ConnectorError(
                    f"The connection to {self._source.host}:{self._source.port} broke after {self._lines_read} lines "
                    f"({error}). A socket cannot be read again: lines since the last checkpoint are lost.",
                    host=self._source.host,
                    port=self._source.port,
                ) from error
            lines = self._cut(received)
            if lines:
                return lines
        return None

    def _cut(self, received: bytes) -> list[str]:
        """Complete lines of what has come so far; empty `received` is the end of the stream."""
        pieces = (self._unfinished + received).split(self._delimiter)
        self._unfinished = pieces.pop()
        if not received:
            self._ended = True
            self._disconnect()
            if self._unfinished:
                pieces.append(self._unfinished)
                self._unfinished = b""
        lines = [self._decoded(piece, number) for number, piece in enumerate(pieces, start=self._lines_read + 1)]
        self._lines_read += len(lines)
        self._check_length(self._unfinished, self._lines_read + 1)
        return lines

    def _decoded(self, piece: bytes, number: int) -> str:
        self._check_length(piece, number)
        if self._drop_carriage_return and piece.endswith(b"\r"):
            piece = piece[:-1]
        try:
            return piece.decode(self._source.encoding)
        except UnicodeDecodeError as error:
            raise ConnectorError(
                f"Line {number} from {self._source.host}:{self._source.port} is not {self._source.encoding} ({error}). "
                "Give the source the encoding of the data.",
                line=number,
            ) from error

    def _check_length(self, piece: bytes, number: int) -> None:
        if len(piece) > self._source.max_line_bytes:
            raise ConnectorError(
                f"Line {number} from {self._source.host}:{self._source.port} is longer than max_line_bytes="
                f"{self._source.max_line_bytes}. Raise the limit, or check the delimiter {self._source.delimiter!r}.",
                line=number,
            )

    def splits(self) -> list[Split]:
        if self._split is None:
            return []
        return [Split(self._split.id, None, finished=self._ended)]

    def _disconnect(self) -> None:
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self._disconnect()


def _keeps_ascii(encoding: str) -> bool:
    try:
        return "\r\nA".encode(encoding) == b"\r\nA"
    except LookupError as error:
        raise ConfigurationError(f"There is no encoding named {encoding!r}.") from error

"""The calling end of a TLS connection that knows whom it calls by the fingerprint of the certificate. Executor.

The coordinator's end is asyncio's (coordinator/server.py).
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading

from tidegate.errors import ProtocolViolation

READ_BYTES = 1 << 18


def pinning_context() -> ssl.SSLContext:
    """Takes any certificate: whoever uses it must hold it against the fingerprint (`is_pinned`) before a word is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def is_pinned(shown: bytes | None, fingerprint: str) -> bool:
    """`shown`: the certificate that a connection shows, in DER."""
    return shown is not None and hmac.compare_digest(hashlib.sha256(shown).hexdigest(), fingerprint)


class TlsSocket:
    """A socket for one thread that reads and any that write.

    TLS is a machine for one thread at a time, and a read may wait for ever: so it works on bytes, under a lock, and the socket
    is waited for outside of it.
    """

    def __init__(self, plain: socket.socket, fingerprint: str) -> None:
        """:raises ProtocolViolation: when the other end is not who it should be. :raises OSError:"""
        self._socket = plain
        self._writing = threading.Lock()  #: taken first
        self._machine = threading.Lock()
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = pinning_context().wrap_bio(self._arrived, self._leaving)
        try:
            self._shake_hands()
        except ssl.SSLError as error:
            raise ProtocolViolation(
                f"whoever answers at the coordinator's address {_peer(plain)} does not speak TLS as this attempt does "
                f"({error.reason}): another program listens there, or one stands between"
            ) from error
        if not is_pinned(self._tls.getpeercert(binary_form=True), fingerprint):
            raise ProtocolViolation(
                f"whoever answers at the coordinator's address {_peer(plain)} shows another certificate than this attempt's: "
                "another program listens there, or one stands between"
            )

    def sendall(self, data: bytes) -> None:
        with self._writing:
            with self._machine:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._tls.write(rest) :]
                out = self._leaving.read()
            self._socket.sendall(out)

    def recv(self, most: int) -> bytes:
        """Empty at the end of the connection."""
        while True:
            with self._machine:
                try:
                    return self._tls.read(most)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            arrived = self._socket.recv(READ_BYTES)
            with self._machine:
                if arrived:
                    self._arrived.write(arrived)
                else:
                    self._arrived.write_eof()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._leaving.read())
                arrived = self._socket.recv(READ_BYTES)
                if not arrived:
                    raise ConnectionError("the coordinator closed the connection") from None
                self._arrived.write(arrived)
            else:
                self._socket.sendall(self._leaving.read())
                return


def _peer(plain: socket.socket) -> str:
    host, port = plain.getpeername()[:2]
    return f"{host}:{port}"

"""The certificate of REST, made once and kept in the registry folder, so that a browser is asked about it once. Driver."""

from __future__ import annotations

import datetime
import logging
import os
import secrets
import socket

from tidegate.rest.registry import registry_folder
from tidegate.wire.certificates import Certificate, made_certificate

log = logging.getLogger("tidegate.rest")

FILE = "rest.pem"  #: key and certificate in one, so that they always belong together
RENEWED_BEFORE = datetime.timedelta(days=30)


def kept_certificate(address: str) -> Certificate:
    """For this machine by all of its names, and for `address`. Where it cannot be kept, it is this process's alone."""
    path = registry_folder() / FILE
    names = sorted({"localhost", "127.0.0.1", "::1", socket.gethostname(), address})
    try:
        kept = Certificate.of(path.read_bytes())
        if kept.ends - datetime.datetime.now(datetime.UTC) > RENEWED_BEFORE and set(names) <= kept.names:
            return kept
    except (OSError, ValueError) as error:
        log.debug("a certificate is made for REST: %s", type(error).__name__)
    made = made_certificate(names)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made.pem)
        draft.replace(path)
    except OSError as error:
        log.info("REST's certificate is not kept in %s: %s", path.parent, error)
    return made

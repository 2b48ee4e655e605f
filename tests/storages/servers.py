"""Real storage servers for tests, on loopback unless told otherwise, each a process of its own that ends with its `with` block.

s3_server()     moto's S3 over HTTP. One request at a time, so that a conditional put is decided as S3 decides it
hdfs_server()   Hadoop's mini cluster: a namenode and a datanode
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 120.0


@contextlib.contextmanager
def ended_with_the_block(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


# -- S3 ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def s3_server(log: Path, host: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """The environment in which a process finds it; there is a bucket named `checkpoints`."""
    from free_ports import free_port  # the S3 server of this module is a program without the tests on its path

    port = free_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, __file__, str(port), host], stdout=out, stderr=out)
    with ended_with_the_block(process):
        bucket = urllib.request.Request(f"{environment['AWS_ENDPOINT_URL']}/checkpoints", method="PUT")
        await_answer(process, log, lambda: urllib.request.urlopen(bucket, timeout=10).close())
        yield environment


def serve_s3(port: int, host: str) -> None:
    """The server's process. moto looks whether an object exists and then writes it; S3 does both in one step."""
    import threading

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environ: dict[str, object], start_response: object) -> list[bytes]:
        with one_at_a_time:
            return list(app(environ, start_response))

    make_server(host, port, answer, threaded=True).serve_forever()


# -- HDFS ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hdfs_server(jars: Path, folder: Path) -> Iterator[str]:
    """The address of the namenode, like hdfs://127.0.0.1:12345."""
    from free_ports import free_port
    from jvms import QUICK_START

    folder.mkdir(parents=True, exist_ok=True)
    details, log = folder / "details.json", folder / "log.txt"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    command = [
        *(
            str(java),
            "-Xmx384m",
            *QUICK_START.split(),
            "-Djava.net.preferIPv4Stack=true",
            f"-Dtest.build.data={folder / 'data'}",
        ),
        *("-cp", f"{jars}/*", "org.apache.hadoop.test.MiniDFSClusterManager"),
        *("-format", "-nnport", str(free_port()), "-datanodes", "1", "-writeDetails", str(details)),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    with ended_with_the_block(process):
        await_answer(process, log, lambda: json.loads(details.read_text()))
        yield f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}"


def await_answer(process: subprocess.Popen[bytes], log: Path, ask: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            ask()  # type: ignore[operator]
            return
        except (OSError, ValueError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}") from None
            time.sleep(0.1)


if __name__ == "__main__":
    serve_s3(int(sys.argv[1]), sys.argv[2])

"""A temporary PostgreSQL server, from Debian's package postgresql."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def find_postgres() -> Path | None:
    pg_ctl = shutil.which("pg_ctl")
    folders = [
        *([Path(pg_ctl).parent] if pg_ctl else []),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
    ]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.getuid() == 0 else {}


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    folder = find_postgres()
    assert folder is not None, "PostgreSQL is not installed: the Debian package postgresql has initdb and pg_ctl"
    with (
        tempfile.TemporaryDirectory(prefix="envfleet-pg-", ignore_cleanup_errors=True) as home,
        socket.socket() as probe,
    ):
        Path(home).chmod(0o777)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": home, **unprivileged()}
        data = f"{home}/data"
        subprocess.run(
            [folder / "initdb", "-D", data, "-U", "envfleet", "-A", "trust", "--no-sync"], check=True, **options
        )
        server = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
        control = [str(folder / "pg_ctl"), "-D", data, "-w", "-t", "60"]
        subprocess.run([*control, "-l", f"{home}/log", "-o", server, "start"], check=True, **options)
        try:
            yield f"postgresql+psycopg://envfleet@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, **options)

"""Connections by actor calls: bytes that one end takes are those that the program sent, whatever the descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from envfleet.workers.transports.ray.tunnel import TunnelEnd


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Take all descriptors below 1,024, as the driver of many workers does."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while (fd := os.open(os.devnull, os.O_RDONLY)) < 1024:
            stack.callback(os.close, fd)
        os.close(fd)
        yield


@pytest.mark.usefixtures("many_descriptors")
def test_descriptors_above_1023() -> None:
    end = TunnelEnd()
    control, data = end.outer
    with control, data:
        assert control.fileno() > 1023
        data.sendall(b"step")
        assert end.take() == [b"", b"step"]
        end.give([b"done", b""])
        assert control.recv(10) == b"done"
        data.close()
        with pytest.raises(ConnectionError):
            end.take()
    end.close()

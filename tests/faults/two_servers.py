"""A server and one that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.living import wait_until
from support.servers import valkey_server

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from support.servers import Valkey

QUICK = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


def quick_server(port: int) -> AbstractContextManager[Valkey]:
    """One that keeps everything, and soon tells others what it has."""
    return valkey_server(port, appendfsync="always", **QUICK)


def follow(server: Valkey, primary: Valkey) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", primary.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")


def promote(server: Valkey) -> None:
    with server.client() as client:
        client.replicaof("NO", "ONE")

"""Huey with Redis, as in the first example of its documentation."""

from __future__ import annotations

import os

from huey import RedisHuey  # type: ignore[import-not-found,unused-ignore]
from redis import UnixDomainSocketConnection
from redis.connection import ConnectionPool

from benchmarks.peers import tasks

pool = ConnectionPool(connection_class=UnixDomainSocketConnection, path=os.environ["PEERS_SOCKET"])
huey = RedisHuey("peers", connection_pool=pool)
run = huey.task()(tasks.run)

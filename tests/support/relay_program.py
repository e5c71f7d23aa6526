"""Runs a relay as a process of its own, which packs by ``pack_program.py``, until it is killed."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

from gpuqueue.settings.settings import Settings
from workers.relay.packing import Packing
from workers.relay.relay import Relay

logging.basicConfig(level=logging.INFO)
Relay(Settings.load(), Packing([sys.executable, str(Path(__file__).with_name("pack_program.py"))])).serve(
    threading.Event()
)

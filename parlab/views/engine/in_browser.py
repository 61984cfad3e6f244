"""Widgets of a page in a browser: what a moved slider runs may start ranks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import comm


def let_sliders_run_ranks() -> None:
    """Handle each message of a widget in a task of its own.

    The page's kernel hands them over in a call from JavaScript, in which no rank can be put aside while it waits.
    """
    manager: Any = comm.get_comm_manager()
    handle = manager.comm_msg

    def later(*message: Any) -> None:
        asyncio.get_running_loop().call_soon(partial(handle, *message))

    manager.comm_msg = later

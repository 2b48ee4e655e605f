"""The line of the user's program that called us, for messages."""

from __future__ import annotations

import os
import sys

from tidegate.errors import UserLine

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def calling_line() -> UserLine:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OUR_FOLDER):
        frame = frame.f_back
    return UserLine(frame.f_code.co_filename, frame.f_lineno)

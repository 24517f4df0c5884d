"""Whether somebody keeps the wall clock right: the kernel's own word. It sets nothing and asks no time server."""

import ctypes
import os
import shutil

from toolkit.serving.fit.facts import Clock

TIME_ERROR = 5
"""What adjtimex returns while the clock is not synchronised (its man page)."""
KEEPERS = ("chronyd", "ntpd", "timedatectl")


class Timex(ctypes.Structure):
    """The start of the kernel's struct timex, and room for the rest (208 bytes in all on 64 bits)."""

    _fields_ = (
        ("modes", ctypes.c_int),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock() -> Clock:
    """Ask without changing anything (`modes` is 0, which every user may)."""
    keeper = next((name for name in KEEPERS if shutil.which(name)), None)
    try:
        asked = Timex()
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError) as error:
        return Clock(keeper=keeper, error=f"adjtimex is not to be had: {error}")
    if answer < 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        return Clock(keeper=keeper, error=f"the kernel does not tell: {reason}")
    return Clock(
        synchronised=answer != TIME_ERROR,
        largest_error_ms=asked.maxerror / 1000,  # the kernel's microseconds
        keeper=keeper,
    )

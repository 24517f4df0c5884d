"""Events of a recorded stream, not chunked."""

from support import chat


def _unchunked(data: bytes) -> bytes:
    return data.partition(b"\r\n")[2].removesuffix(b"\r\n")


ROLE, FINISH, USAGE, DONE = map(_unchunked, (chat.ROLE, chat.FINISH, chat.USAGE, chat.DONE))


def said(*texts: str) -> bytes:
    """Events of a token each."""
    return b"".join(_unchunked(chat.token(text)) for text in texts)

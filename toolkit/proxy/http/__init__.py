"""The sockets on both sides, and the bytes of HTTP/1.1 on them: where a request or an answer ends, who waits, what ends a connection."""

"""One upstream answer: recorded as it comes, judged at its end, given in whichever form a client wants. No socket, no clock."""

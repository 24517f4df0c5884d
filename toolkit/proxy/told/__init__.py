"""What is told of what was served: counters, the last minute, /metrics, the log, the store's rows, why a request was no hit."""

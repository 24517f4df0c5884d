"""SERVE: a machine fit to serve, an engine that starts warm behind the proxy, and somebody who restarts it."""

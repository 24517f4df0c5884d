"""The response cache and router in front of engines; docs/one-request.md follows one request through it."""

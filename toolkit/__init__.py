"""One toolkit for people who serve LLMs: look at many servers, measure them fairly, serve better."""

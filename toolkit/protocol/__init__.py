"""OpenAI-style requests and answers: what is asked, what is told of it. No I/O."""

"""One chat call with OpenAI's own client, where it is installed: the plainest proof that it works."""

import os

from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.tuning.criteria import ClientCall
from toolkit.units import milliseconds

CALL_S = 60.0
MAX_TOKENS = 32


def called(word: str, key_env: str | None) -> ClientCall:
    """Ask once, for a few tokens. Raises ToolkitError where the client is not installed."""
    url = one_host(word).url
    # its import takes as long as many a call
    with waiting_for(f"Calling {url}"):
        return _called(url, key_env)


def _called(url: str, key_env: str | None) -> ClientCall:
    try:
        import openai
    except ImportError as error:
        raise ToolkitError(
            "OpenAI's client is not installed here", "Install it: `pip install openai`"
        ) from error
    import time

    key = os.environ.get(key_env, "").strip() if key_env else "none"
    if not key:
        raise ToolkitError(
            f"`{key_env}` is not set, which holds the key for `--call`",
            f"Set it, e.g., `export {key_env}=...`",
        )
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=CALL_S, max_retries=0)
    began_s = time.monotonic()
    try:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Write a sample pytest fixture."}],
            max_tokens=MAX_TOKENS,
        )
        choice = answer.choices[0]
    except (openai.OpenAIError, LookupError, TypeError, AttributeError) as error:
        return ClientCall(ok=False, told=f"OpenAI's client failed at {url}: {_first_line(error)}")
    took = milliseconds(1000 * (time.monotonic() - began_s))
    if not choice.finish_reason or not choice.message.content:
        return ClientCall(ok=False, told=f"OpenAI's client got an answer without a text from {url}")
    return ClientCall(
        ok=True,
        told=f"OpenAI's client {openai.__version__} completed a chat call with {model} in {took}",
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

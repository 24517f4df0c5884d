"""How many users does every host get? Pure arithmetic."""

from toolkit.errors import ToolkitError


def users_for(users: int, hosts: int) -> tuple[int, str | None]:
    """Round up to the same number of users for every host, and say so in a sentence where it was needed."""
    if hosts < 1:
        raise ToolkitError("there is no host to load", "Name one, e.g., in `hosts.txt`")
    if users < 1:
        raise ToolkitError(f"a blast cannot have `{users}` users", "Give at least 1 for each host")
    each = -(-users // hosts)
    if each * hosts == users:
        return users, None
    said = f"{users} users were rounded up to {each * hosts}: {each} for each of {hosts} hosts"
    return each * hosts, said

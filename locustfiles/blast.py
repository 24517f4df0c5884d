"""The same load on every host at once, with Locust: `locust -f locustfiles/blast.py --hosts-file hosts.txt`.

    locust -f locustfiles/blast.py                                        web page on port 8089
    locust -f locustfiles/blast.py --headless -u 32 -t 15m [--processes 4]
    locust -f locustfiles/blast.py --master        and on other machines   --worker --master-host ADDRESS

Every host gets the same number of users, each with one request under way over a connection of its own. What was counted
goes into a SQLite file once a second, from where board and leaderboard read it. `toolkit blast` runs this file headless.
"""

from blast_connection import HostAddress
from blast_handler import user_class
from blast_handshake import greet_master
from blast_options import add_arguments, end_with, read_early
from blast_run import Blast, shape_class
from locust import events

from toolkit.errors import ToolkitError

_early = read_early()
_addresses = [
    HostAddress(host, key=_early.keys.get(host.name), tls=_early.tls) for host in _early.hosts
]
if _early.is_worker:
    try:
        greet_master(
            _early.options.master_host,
            _early.options.master_port,
            _early.hosts_hash,
            _early.hosts,
        )
    except ToolkitError as error:
        end_with(error)
_blast = Blast(_early, _addresses)
events.init_command_line_parser.add_listener(add_arguments)
_blast.listen(events)

_classes = {address.host.name: user_class(address, _blast) for address in _addresses}
if _early.profile is not None and _early.profile.phases:
    # no host is called so: a name holds no space
    _classes["phases of the profile"] = shape_class(_early.profile.phases, len(_addresses), _blast)
# Locust looks for classes among this file's names; nothing may stand below, as a host could be called like what it uses
globals().update(_classes)

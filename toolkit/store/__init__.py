"""Where facts are kept: these files alone know the tables.

    database.py      the file itself, and hosts
    migrations.py    all tables, and how they came to be
    snapshots.py     what scout saw
    runs.py          runs, a bench's rows of them; whole runs counted, copied, removed
    tallies.py       a blast's seconds, and events
    captures.py      requests as they arrived

They never decide what a fact means, never create a table outside a migration, and never store
an API key or the name of the variable that holds one.
"""

from toolkit.store.captures import Captures
from toolkit.store.snapshots import Snapshots
from toolkit.store.tallies import Tallies


class Store(Snapshots, Tallies, Captures):
    """All facts in one open database file; see Database for who may share it and what it raises."""

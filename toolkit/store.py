"""Where facts are kept: the parts of the store, put together, are the only modules that know the tables.

    database.py      the file itself, and hosts
    store_looks.py   hosts --< sightings --< readings >-- series
    store_runs.py    hosts --< shots, ledgers, verdicts >-- runs
    store_blasts.py  hosts --< tallies, events, run_hosts >-- runs;  workers --< tallies, loader_seconds >-- runs
    store_seen.py    runs --< seen >-- bodies, prompts, clients, targets; captures >-- runs
    store_upkeep.py  whole runs of all these: counted, copied, removed
    migrations.py    how the tables came to be

They never decide what a fact means, never create a table outside a migration, and never store
an API key or the name of the variable that holds one.
"""

from toolkit.store_upkeep import Upkeep


class Store(Upkeep):
    """All facts in one open database file; see Database for who may share it and what it raises."""

"""What the requests that arrived have in common, and what follows from it.

read -> RequestSource -> columns -> RequestColumns -> summarise -> Workload -> figures, page (page.py)
                                                   -> synthesis: a load profile; export: a trace
"""

from toolkit.workload.columns import RequestColumns, columns
from toolkit.workload.exports import export
from toolkit.workload.forecast import hit_curve
from toolkit.workload.prefixes import shared_prefix
from toolkit.workload.readers import RequestSource, lines_of, read
from toolkit.workload.summary import Workload, summarise
from toolkit.workload.synthesis import synthesis

__all__ = [
    "RequestColumns",
    "RequestSource",
    "Workload",
    "columns",
    "export",
    "hit_curve",
    "lines_of",
    "read",
    "shared_prefix",
    "summarise",
    "synthesis",
]

"""The leaderboard as a page: `streamlit run dashboards/leaderboard.py [-- --db FILE --title TEXT --logo FILE]`.

It reads, ranks and draws; it writes nothing but the presenter's steps of a reveal (presenter.py). Settings of a viewer are
in the link (leaderboard_page/address.py); the figures come from one Source for all viewers, and each part is built once for
all who want the same.

    toolbar    Streamlit's widgets, outside all fragments: keys rank window honest top theme run csv cmp live play t
    fast       every 2 s: .strip with .facts (.phase .clock .window .data/.age[data-state] .as-of .frozen .viewers),
               .banner, .provenance (.run .loader .limited .users .profile .since), .kpis (after a reveal .finale: .podium
               .categories), table#board[data-rank-by] > tbody#standings, tbody#left-out > tr[data-host][data-rank][data-place]
               > .c-rank .c-move .c-host .c-rps .c-spark .c-score .c-tokens .c-ttft50 .c-ttft95 .c-p50 .c-p95 .c-errors
               .c-hits, with .badge[data-code] .note .tie; details#evidence, in a kiosk .turning
    slow       every 10 s: figure.chart[data-chart=ranks|tradeoff]
    compare    on demand: [data-chart=densities|series-rps|series-p95_ms], table.differences
    panel      beside the table, on demand: aside.panel with .story, .facts-of-host, [data-chart=heat|density]
    rest       every 30 s: .bench .workload .method
    hosts      instead of all, before the first blast and with ?view=hosts, every 2 s: .strip, .kpis, #before with
               .hosts (table.settings > tr[data-key=host/NAME], #findings) .bench (table.bench-ranking) .workload
    #feeding   instead of that, while nothing was measured; .trouble is a sentence about the database

Rows, column heads and marks are links (leaderboard_page/address.py), which live.js follows without a new page.
Each live part is one component (leaderboard_page/live.js) whose nodes stay the same for as long as they show the same.
"""

from leaderboard_page.page import main

main()

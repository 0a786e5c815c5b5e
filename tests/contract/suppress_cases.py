"""Suppressed updates of tables, as text tables; see operator_tables."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
GRACE = ss.TumblingWindows(10, grace=5, retention=30)
HOPS = ss.HoppingWindows(10, 5)
SESSIONS = ss.SessionWindows(10, grace=5)
FINAL = ss.Suppressed.until_window_closes()


@case("""
    | in       | out                             |
    | b 1 1    |                                 |
    | a 1 2    |                                 |
    | a 1 12   |                                 |
    | a 1 3    |                                 |
    | a 1 14   |                                 |
    | a 1 15   | a@0-10 2 3 ; b@0-10 1 1         |
    | a 1 4    |                                 |
    | a 1 24   |                                 |
    | c 1 99   | a@10-20 3 15 ; a@20-30 1 24     |
""")
def suppress_windows(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(GRACE).count(of.kept())
    of.out(counts.suppress(FINAL, name=of.of("final")).to_stream())


@case("""
    | in       | out                          |
    | a 1 13   |                              |
    | a 2 17   | a@5-15 [1] 13                |
    | b 0 22   | a@10-20 [3] 17               |
    | b 1 25   | a@15-25 [2] 17               |
    | b 0 23   |                              |
    | c 1 50   | b@20-30 [1] 25 ; b@25-35 [1] 25 |
""")
def suppress_hops_filtered_and_mapped(of: Case) -> None:
    sums = of.stream().group_by_key().windowed_by(HOPS).reduce(int.__add__, of.kept())
    seen = sums.filter(lambda _window, total: total > 0).map_values(lambda total: [total])
    of.out(seen.suppress(FINAL, name=of.of("final")).to_stream())


@case("""
    | in     | out          |
    | a 1 1  |              |
    | a 1 2  |              |
    | b 1 14 |              |
    | b 1 15 | a@0-10 [2] 2 |
    | b 1 16 |              |
    | - 1 99 |              |
    | c 1 30 | b@10-20 [3] 16 |
""")
def suppress_windows_below_a_filter(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(GRACE).count(of.kept())
    seen = counts.filter(lambda window, n: n > 1 and window.key != "c").map_values(lambda n: [n])
    of.out(seen.suppress(FINAL, name=of.of("final")).to_stream())


@case("""
    | in        | out            |
    | a 1 1     |                |
    | right:a 1 2 |              |
    | b 1 14    |                |
    | b 1 15    | a@0-10 [1,1] 2 |
    | right:c 1 16 |             |
""")
def suppress_windows_joined(of: Case) -> None:
    left = of.stream().group_by_key().windowed_by(GRACE).count(of.kept())
    right = of.stream("right").group_by_key().windowed_by(GRACE).count(of.kept("kept-right"))
    both = left.join(right, lambda a, b: [a, b])
    of.out(both.suppress(FINAL, name=of.of("final")).to_stream())


@case("""
    | in       | out                             |
    | a 1 10   |                                 |
    | a 1 20   |                                 |
    | b 1 35   |                                 |
    | a 1 25   |                                 |
    | b 1 40   |                                 |
    | b 1 41   | a@10-25 3 25                    |
    | a 1 26   |                                 |
    | c 1 57   | a@26-26 1 26 ; b@35-41 3 41     |
""")
def suppress_sessions(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(SESSIONS).count(of.kept())
    of.out(counts.suppress(FINAL, name=of.of("final")).to_stream())


@case("""
    | in        | out                   |
    | a 1 0     |                       |
    | a 2 5     |                       |
    | b 3 9     |                       |
    | b 4 10    | a 2 5                 |
    | a 5 3     |                       |
    | a - 18    | a - 18                |
    | c 6 19    | b 4 10                |
    | c 7 28    |                       |
    | - 1 99    |                       |
    | d 8 40    | c 7 28                |
""")
def suppress_by_time_limit(of: Case) -> None:
    held = of.table("in").suppress(ss.Suppressed.until_time_limit(10), name=of.of("held"))
    of.out(held.to_stream())


@case("""
    | in        | out                   |
    | a 1 0     |                       |
    | b 2 1     |                       |
    | a 3 2     |                       |
    | c 4 3     | a 3 2                 |
    | a 5 0     | a 5 0                 |
    | d 6 200   | b 2 1 ; c 4 3         |
    | e 7 150   |                       |
    | f 8 160   | e 7 150               |
""")
def suppress_full_emits_early(of: Case) -> None:
    limit = ss.Suppressed.until_time_limit(100, max_records=2)
    of.out(of.table("in").suppress(limit, name=of.of("held")).to_stream())


@case("""
    | in      | out                |
    | a 1 0   |                    |
    | a 2 4   |                    |
    | b 2 5   |                    |
    | z 1 10  | 2 1 4              |
    | b 1 12  |                    |
    | a 1 14  |                    |
    | z 1 15  | 1 1 12             |
    | z 1 22  | 1 2 22             |
    | z 1 30  | 2 0 14 ; 1 3 22    |
""")
def suppress_then_group(of: Case) -> None:
    held = of.table("in").suppress(ss.Suppressed.until_time_limit(10), name=of.of("held"))
    groups = held.group_by(lambda _key, value: (str(value), value), name=of.of("by"))
    of.out(groups.count(of.kept()).to_stream())


@case("""
    | in         | out          |
    | a 1 0      |              |
    | right:a 1 1|              |
    | a 2 10     | a [2,1] 10   |
    | a 3 12     |              |
    | right:a 2 13| a [2,2] 13  |
    | b 1 22     | a [3,2] 13   |
""")
def suppress_then_join(of: Case) -> None:
    held = of.table("in").suppress(ss.Suppressed.until_time_limit(10), name=of.of("held"))
    of.out(held.join(of.table("right"), lambda a, b: [a, b]).to_stream())

"""Questions about stores: which store, what it is like, whom to ask, how its rows are shown.

Commands, pages, the server, snapshots and Spark ask in different ways, and get the same rows and
the same words:

    views.py       what a deployment says of one store
    decoding.py    keys and values: from what somebody types, and to what somebody reads
    questions.py   which rows of a store
    desk.py        the stores of an application at rest, in snapshots of its stream tasks
"""

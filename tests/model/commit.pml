/* The commit protocol of a stream task, to be searched whole by SPIN (docs/proof.md).

   Owners of one stream task commit numbers 1, 2, 3 … Each has an id of n mod 2, its records in two
   parts, the group's offsets with the number, and an end. Any message may be lost, stay without an
   answer, or leave a copy that arrives whenever it likes, in any order, or never. Owners die at any
   step, lose the task to another one without noticing, and come back.

   Parameters come from the environment (search.py). Bounds: OWNERS of 2, COMMITS, LIVES (starts of
   owners), LATE copies of at most 2 on their way at once, FAULTS (messages that meet something,
   steps that are given up), EXPIRIES (transactions that the broker aborts). WIRE has a bit for each
   owner that speaks KIP-890; the others speak what librdkafka does. What protects, each 1 unless it
   is switched off:
     EPOCHS   an id is opened again before it carries another transaction (librdkafka)
     IDS      2 ids in turn, or 1
     CHECK    after an id was opened again, the group is asked whether another owner went on
     FIRST    the id of the last transaction is open again before the next one has its offsets
     SETTLE   an end without an answer is settled by asking the group; 0: taken for lost, 2: for done
     LOGFIRST the stores are written after the log

   With -DTRACE the model moves only as a trace of the implementation says, where EV() stands: if it
   can follow the trace to its end, the last assertion fails, so an error means: accepted. */

c_decl {
static int given(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
}

hidden byte OWNERS; hidden byte LATE; hidden byte EPOCHS; hidden byte IDS; hidden byte CHECK; hidden byte FIRST; hidden byte SETTLE; hidden byte LOGFIRST; hidden byte WIRE;
hidden short COMMITS;
#ifdef TRACE
#define OWNERS_MAX 6
#define LATE_MAX 3
#else
#define OWNERS_MAX 2
#define LATE_MAX 2
#endif

#define WHOLE 3 /* both parts of the records */

/* What the broker knows of an id's transaction. */
#define NONE 0
#define OPEN 1
#define COMMITTING 2 /* decided and answered, not yet told to the group */
/* How the last one ended, which a repeated request is told again. */
#define NEITHER 0
#define COMMITTED 1
#define ABORTED 2

/* Messages; 0 is an empty place. */
#define INIT 1
#define PART_A 2
#define PART_B 3
#define OFFSETS 4
#define COMMIT 5
#define ABORT 6

/* Where an owner is. */
#define GONE 0
#define CLAIMED 1
#define LOOKED 2   /* has read the group, and opened nothing yet */
#define OPENING 3  /* its ids are opened, one after the other */
#define READING 4
#define READY 5
#define BEGUN 6
#define HALF 7
#define RECORDED 8
#define WITH_OFFSETS 9
#define ASKED 10   /* asked for the end, and heard nothing: it can only ask again, or settle */
#define UNSURE 11  /* opens the ids to settle what became of its commit */
#define SETTLING 12
#define DECIDED 13 /* knows that the log committed: its stores come next */
#define SETTLED 14 /* the same, and its ids are open */
#define BACK 15    /* goes back to the last commit, if the task is still its own */

/* What an owner thinks of an id of its own. */
#define TO_OPEN 0
#define TO_CHECK 1
#define USABLE 2

#ifdef TRACE
#define NUM short
#else
#define NUM byte
#endif

typedef Id {
    NUM epoch;
    byte state;
    byte last;
    byte parts;     /* records that are in it, a bit for each part */
    NUM number;     /* whose */
    NUM offsets;    /* the number with its offsets; 0: none */
    NUM appended;   /* sequence number of the last record of this epoch */
    bit overtaken;  /* newer offsets than its own were committed meanwhile */
};
typedef Message { byte kind; byte id; bit wire; NUM epoch; NUM number; };
typedef Own { NUM epoch; byte state; NUM next; };
typedef Owner {
    byte at;
    byte opened;    /* ids opened so far, while OPENING */
    bit settles;    /* whether it opens to settle */
    bit written;    /* whether the stores have the open commit already (LOGFIRST 0) */
    NUM base;       /* the number that its state has */
    NUM store;      /* the number that its folder has */
    Own own[2];
};

Id ids[2];
Message late[LATE_MAX];
Owner owners[OWNERS_MAX];
NUM group;         /* the number of the group's committed offsets */
NUM logged;        /* the number of the last commit that the log decided */
byte newest;       /* whose offsets were sent last, of two ids that have some */
byte owner_json;   /* which owner the folder names: the last one to claim; OWNERS_MAX: none */
byte lives;
byte faults;
byte expiries;

#ifdef TRACE
short at_event;
hidden byte ev_kind[4000]; hidden byte ev_who[4000]; hidden short ev_number[4000];
hidden short ev_count;
#define EV(kind, who, n) (at_event < ev_count && ev_kind[at_event] == (kind) && \
    ev_who[at_event] == (who) && (ev_number[at_event] == (n) || ev_number[at_event] < 0))
#define NEXT at_event++
#define SILENT false  /* what a trace would have told */
#else
#define EV(kind, who, n) true
#define NEXT skip
#define SILENT true
#endif
#define E_CLAIM 1
#define E_OPENED 2
#define E_READ 3
#define E_BEGIN 4
#define E_RECORDS 5
#define E_OFFSETS 6
#define E_ENDED 7
#define E_UNANSWERED 8
#define E_STORE 9
#define E_GONE 10
#define E_EXPIRED 11
#define E_HALF_OPENED 12

#define IS_WIRE(o) ((WIRE >> (o)) & 1)
#define ORDER (2 * m_number + m_kind - PART_A)

/* The message that is being sent; they mean nothing between two steps. */
byte m_kind; byte m_id; NUM m_epoch; NUM m_number; byte m_wire;
byte answer; byte heard; byte place; byte fate; byte i;

/* A transaction is decided: whole, the next number, and by the message that was sent for it. */
inline decide() {
    if
    :: !ids[m_id].number && m_number <= logged && (!ids[m_id].offsets || ids[m_id].offsets == m_number)
        /* What was decided is repeated, without records: it does harm if the group goes back. */
    :: else ->
        assert(ids[m_id].number == m_number);   /* sent for another transaction */
        assert(ids[m_id].parts == WHOLE);       /* torn, or records of two numbers */
        assert(ids[m_id].offsets == m_number);  /* offsets of another number */
        assert(m_number == logged + 1);         /* a number twice, or on an older state */
        logged = m_number
    fi;
    ids[m_id].state = COMMITTING; ids[m_id].last = COMMITTED;
    ids[m_id].parts = 0; ids[m_id].number = 0
}

/* The group learns of it. Of two commits, that whose offsets were sent last counts. */
inline complete(c) {
    if
    :: ids[c].offsets && !ids[c].overtaken ->
        assert(ids[c].offsets >= group);      /* the group goes back */
        group = ids[c].offsets;
        if
        :: ids[1 - c].offsets && newest == c -> ids[1 - c].overtaken = 1
        :: else
        fi
    :: else
    fi;
    ids[c].state = NONE; ids[c].offsets = 0; ids[c].overtaken = 0
}

inline drop_open(d) {
    ids[d].state = NONE; ids[d].parts = 0; ids[d].number = 0; ids[d].offsets = 0;
    ids[d].overtaken = 0; ids[d].appended = 0; ids[d].last = NEITHER
}

/* The broker says "again" to what comes while the last end is not told to all: it waits, at its
   sender or on its way. */
#define IS_FREE(f) (ids[f].state != COMMITTING)

/* The broker takes a message or refuses it: `answer`. */
inline deliver() {
    answer = 0;
    printf("the broker gets: kind %d, id %d, epoch %d, number %d\n", m_kind, m_id, m_epoch, m_number);
    if
    :: m_kind == INIT ->
        drop_open(m_id);
        ids[m_id].epoch++;
        answer = 1
    :: m_kind != INIT && m_epoch == ids[m_id].epoch ->
        answer = 1;
        if
        :: m_kind == PART_A || m_kind == PART_B ->
            ids[m_id].state = OPEN;
            if
            :: ORDER > ids[m_id].appended ->
                assert(!ids[m_id].number || ids[m_id].number == m_number);
                ids[m_id].number = m_number;
                ids[m_id].parts = ids[m_id].parts | (1 << (m_kind - PART_A));
                ids[m_id].appended = ORDER
            :: else /* a repetition, by its sequence number */
            fi
        :: m_kind == OFFSETS ->
            ids[m_id].state = OPEN;
            ids[m_id].offsets = m_number;
            ids[m_id].overtaken = 0;
            newest = m_id
        :: m_kind == COMMIT && ids[m_id].state == OPEN ->
            decide();
            ids[m_id].epoch = ids[m_id].epoch + m_wire;
            ids[m_id].appended = (m_wire -> 0 : ids[m_id].appended)
        :: m_kind == ABORT && ids[m_id].state == OPEN ->
            assert(!ids[m_id].number || ids[m_id].number == m_number);
            drop_open(m_id);
            ids[m_id].last = ABORTED;
            ids[m_id].epoch = ids[m_id].epoch + m_wire
        :: m_kind == COMMIT && ids[m_id].state != OPEN -> answer = (ids[m_id].last == COMMITTED)
        :: m_kind == ABORT && ids[m_id].state != OPEN -> answer = (ids[m_id].last == ABORTED)
        fi
    /* KIP-890: the end is told again with the epoch that it had. */
    :: m_kind != INIT && m_epoch != ids[m_id].epoch ->
        answer = (m_kind == COMMIT && m_wire && m_epoch + 1 == ids[m_id].epoch &&
            ids[m_id].state != OPEN && ids[m_id].last == COMMITTED)
    fi
}

/* A copy of the message stays on its way, if there is room. */
inline leave_copy() {
    printf("left on its way: kind %d, id %d, epoch %d, number %d\n", m_kind, m_id, m_epoch, m_number);
    place = 0;
    do
    :: place < LATE && late[place].kind -> place++
    :: else -> break
    od;
    if
    :: place < LATE ->
        late[place].kind = m_kind; late[place].id = m_id; late[place].wire = m_wire;
        late[place].epoch = m_epoch; late[place].number = m_number
    :: else
    fi;
    place = 0
}

/* A message and its answer: `heard` is 0 if none came. */
inline send(may_fail) {
    if
    :: fate = 0
    :: may_fail && faults -> faults--; fate = 1  /* repeated on the way */
    :: may_fail && faults -> faults--; fate = 2  /* the answer is lost */
    :: may_fail && faults -> faults--; fate = 3  /* late; lost, if it never arrives */
    fi;
    if
    :: fate < 3 -> deliver()
    :: else
    fi;
    if
    :: fate == 1 || fate == 3 -> leave_copy()
    :: else
    fi;
    heard = fate < 2
}

inline message(kind_, id_, epoch_, number_, wire_) {
    m_kind = kind_; m_id = id_; m_epoch = epoch_; m_number = number_; m_wire = wire_
}

#define me owners[who]
#define THIS (me.base + 1)
#define turn (THIS % IDS)
#define mine owners[who].own[turn]
/* The group's offsets are told when no transaction holds some. */
#define IS_STABLE (!ids[0].offsets && !ids[1].offsets)

inline forget() {
    i = 0; fate = 0; heard = 0; answer = 0; m_kind = 0; m_id = 0; m_epoch = 0; m_number = 0; m_wire = 0
}

inline go_back() { me.at = BACK; me.settles = 0; me.opened = 0; me.written = 0 }

inline die() {
    me.at = GONE; me.opened = 0; me.settles = 0; me.written = 0; me.base = 0;
    me.own[0].epoch = 0; me.own[0].state = TO_OPEN; me.own[0].next = 0;
    me.own[1].epoch = 0; me.own[1].state = TO_OPEN; me.own[1].next = 0
}

/* A transaction has ended for its owner: the id carries THIS + 2 next, or the same one again. */
inline used() {
    if
    :: IS_WIRE(who) -> mine.epoch = mine.epoch + 1 /* the answer has it */
    :: !IS_WIRE(who) && EPOCHS ->
        mine.state = TO_OPEN; mine.epoch = 0; mine.next = THIS + 2
    :: else
    fi
}

/* librdkafka's ids are opened again in the background. */
#define AT_WORK (!IS_WIRE(who) && EPOCHS && me.at >= READY && me.at <= WITH_OFFSETS)
#define IN_TRANSACTION (me.at >= BEGUN && me.at <= WITH_OFFSETS)
#define ENDS (me.at >= WITH_OFFSETS)
#define IS_REOPENED (!FIRST || !EPOCHS || IS_WIRE(who) || IDS == 1 || me.own[1 - turn].state != TO_OPEN)
#define MAY_SEND ((me.at != RECORDED || IS_REOPENED) && (me.at != WITH_OFFSETS || LOGFIRST || me.written))

inline look(index) {
    if
    :: group < me.own[index].next -> me.own[index].state = USABLE
    :: else -> go_back()
    fi
}

inline give_up() {
    mine.state = TO_OPEN; mine.epoch = 0; mine.next = THIS; me.at = READY
}

proctype owner(byte who) {
    do
    /* Start. With nothing to do it reads first, and opens its ids before its first write. */
    :: atomic { me.at == GONE && lives && EV(E_CLAIM, who, 0) ->
        NEXT; lives = lives - SILENT; die(); owner_json = who; me.at = CLAIMED }
    :: atomic { me.at == CLAIMED -> me.at = OPENING }
    :: atomic { me.at == CLAIMED && IS_STABLE && EV(E_READ, who, group) ->
        NEXT; me.base = group; me.at = LOOKED }
    :: atomic { me.at == LOOKED -> me.at = OPENING }
    /* An id is opened, which ends what it carried; behind a transaction of ours in the background. */
    :: atomic { SILENT && ((me.at == OPENING && me.opened < IDS) || (AT_WORK &&
            (me.own[0].state == TO_OPEN || (IDS == 2 && me.own[1].state == TO_OPEN)))) ->
        if
        :: me.at == OPENING -> i = me.opened
        :: me.at != OPENING && me.own[0].state == TO_OPEN -> i = 0
        :: me.at != OPENING && me.own[0].state != TO_OPEN -> i = 1
        fi;
        if
        :: IS_FREE(i) ->
            message(INIT, i, 0, 0, 0);
            send(true);
            if
            :: heard && me.at == OPENING ->
                me.own[i].epoch = ids[i].epoch; me.own[i].state = USABLE; me.opened++
            :: heard && me.at != OPENING ->
                me.own[i].epoch = ids[i].epoch; me.own[i].state = (CHECK -> TO_CHECK : USABLE)
            :: else /* asked again */
            fi
        :: else
        fi;
        forget() }
    :: atomic { me.at == OPENING && me.opened == IDS && SILENT ->
        me.opened = 0; me.at = (me.settles -> SETTLING : READING) }
    :: atomic { AT_WORK && me.own[0].state == TO_CHECK -> look(0) }
    :: atomic { AT_WORK && me.own[1].state == TO_CHECK -> look(1) }
#ifdef TRACE
    :: atomic { me.at == OPENING && IS_FREE(0) && IS_FREE(1) &&
            (EV(E_OPENED, who, 0) || EV(E_HALF_OPENED, who, 0)) ->
        drop_open(0); drop_open(1); ids[0].epoch++; ids[1].epoch++;
        me.own[0].epoch = ids[0].epoch; me.own[0].state = USABLE;
        me.own[1].epoch = ids[1].epoch; me.own[1].state = USABLE;
        if
        :: EV(E_OPENED, who, 0) -> me.at = (me.settles -> SETTLING : READING)
        :: else -> go_back()
        fi;
        NEXT }
    :: atomic { AT_WORK && me.own[0].state == TO_OPEN && IS_FREE(0) ->
        drop_open(0); ids[0].epoch++; me.own[0].epoch = ids[0].epoch; me.own[0].state = TO_CHECK }
    :: atomic { AT_WORK && me.own[1].state == TO_OPEN && IS_FREE(1) ->
        drop_open(1); ids[1].epoch++; me.own[1].epoch = ids[1].epoch; me.own[1].state = TO_CHECK }
#endif
    :: atomic { me.at == READING && IS_STABLE && EV(E_READ, who, group) ->
        NEXT; me.base = group;
        assert(me.store <= group);            /* the store is ahead of the log */
        me.store = group; me.at = READY }
    /* A transaction: both parts of the records, the offsets, the end. */
    :: atomic { me.at == READY && THIS <= COMMITS && mine.state == USABLE && EV(E_BEGIN, who, THIS) ->
        NEXT; me.at = BEGUN }
    :: atomic { me.at >= BEGUN && me.at <= ASKED && IS_FREE(turn) && MAY_SEND &&
            (me.at == BEGUN || EV((ENDS -> E_ENDED : me.at - HALF + E_RECORDS), who, THIS)) ->
        if
        :: me.at != BEGUN -> NEXT
        :: else
        fi;
        message((ENDS -> COMMIT : me.at - BEGUN + PART_A), turn, mine.epoch, THIS, IS_WIRE(who));
        send(SILENT);
        if
        :: heard && answer -> me.at = (ENDS -> DECIDED : me.at + 1)
        :: !(heard && answer) && !ENDS -> go_back()
        :: !(heard && answer) && ENDS && SILENT -> me.at = UNSURE
        :: !heard && ENDS -> me.at = ASKED
        fi;
        forget() }
#ifdef TRACE
    /* The answer was on its way when another owner opened the id. */
    :: atomic { me.at == ASKED && logged >= THIS && EV(E_ENDED, who, THIS) -> NEXT; me.at = DECIDED }
    :: atomic { IN_TRANSACTION && IS_FREE(turn) && mine.epoch == ids[turn].epoch ->
        drop_open(turn); go_back() }
    :: atomic { IN_TRANSACTION && IS_FREE(turn) && mine.epoch == ids[turn].epoch ->
        drop_open(turn); give_up() }
    :: atomic { ENDS && me.at <= ASKED && IS_FREE(turn) && EV(E_UNANSWERED, who, THIS) ->
        NEXT; me.at = ASKED;
        message(COMMIT, turn, mine.epoch, THIS, 0);
        if
        :: deliver()
        :: leave_copy()
        fi;
        forget() }
    :: atomic { ENDS && me.at <= ASKED -> me.at = UNSURE }
#endif
    :: atomic { me.at == WITH_OFFSETS && !LOGFIRST && !me.written ->
        me.store = THIS; me.written = 1 }
    /* An end that nobody answers: the group tells, once the ids are opened by their owner. */
    :: atomic { me.at == UNSURE && SETTLE == 2 -> me.at = DECIDED }
    :: atomic { me.at == UNSURE && SETTLE != 2 && owner_json == who ->
        me.settles = 1; me.opened = 0; me.at = OPENING }
    :: atomic { me.at == UNSURE && SETTLE != 2 && owner_json != who -> go_back() }
    :: atomic { me.at == SETTLING && IS_STABLE && EV(E_READ, who, group) ->
        NEXT; me.settles = 0;
        if
        :: SETTLE == 0 -> me.at = READY
        :: SETTLE && group == THIS -> me.at = SETTLED
        :: SETTLE && group != THIS -> go_back()
        fi }
    /* The log has it: the stores follow. */
    :: atomic { (me.at == DECIDED || me.at == SETTLED) && (me.written || EV(E_STORE, who, THIS)) ->
        if
        :: me.written -> me.written = 0
        :: else -> NEXT; me.store = THIS
        fi;
        assert(me.store <= logged);           /* the store is ahead of the log */
        if
        :: me.at == DECIDED -> used()
        :: else
        fi;
        me.base = THIS; me.at = READY }
    /* Whatever fails before the end, a fence too: back to the last commit, if the task is ours. */
    /* Or the transaction alone is given up, and its number begun again once its id is open again. */
    :: atomic { IN_TRANSACTION && !IS_WIRE(who) && EPOCHS && !me.written && faults ->
        faults = faults - SILENT; give_up() }
#ifdef TRACE
    :: atomic { me.at != GONE && me.at != BACK -> go_back() }
#endif
    :: atomic { me.at == BACK && owner_json == who -> me.opened = 0; me.at = OPENING }
    :: atomic { me.at == BACK && owner_json != who && SILENT -> die() }
    /* Death at any moment, and a clean end within a transaction. */
    :: atomic { me.at != GONE && lives && EV(E_GONE, who, 0) -> NEXT; die() }
    :: atomic { IN_TRANSACTION && !me.written && IS_FREE(turn) && lives && SILENT ->
        message(ABORT, turn, mine.epoch, THIS, IS_WIRE(who));
        send(true);
        die(); forget() }
    od
}

/* Late copies arrive, ends are told to the group, transactions expire. */
proctype world() {
    do
    :: atomic { ids[0].state == COMMITTING -> complete(0) }
    :: atomic { ids[1].state == COMMITTING -> complete(1) }
    :: atomic { LATE > 0 ->
        i = 0;
        do
        :: i < LATE && (!late[i].kind || !IS_FREE(late[i].id)) -> i++
        :: i < LATE && late[i].kind && IS_FREE(late[i].id) -> i++
        :: i < LATE && late[i].kind && IS_FREE(late[i].id) -> break
        :: i >= LATE -> break
        od;
        if
        :: i < LATE ->
            message(late[i].kind, late[i].id, late[i].epoch, late[i].number, late[i].wire); deliver();
            late[i].kind = 0; late[i].id = 0; late[i].epoch = 0; late[i].number = 0; late[i].wire = 0
        :: else
        fi; forget() }
    :: atomic { expiries && ids[0].state == OPEN && SILENT ->
        expiries--; drop_open(0); ids[0].epoch++ }
    :: atomic { expiries && ids[1].state == OPEN && SILENT ->
        expiries--; drop_open(1); ids[1].epoch++ }
#ifdef TRACE
    :: atomic { EV(E_EXPIRED, OWNERS_MAX, 0) ->
        NEXT;
        if
        :: ids[0].state == OPEN -> drop_open(0)
        :: else
        fi;
        if
        :: ids[1].state == OPEN -> drop_open(1)
        :: else
        fi;
        if
        :: ids[0].state != COMMITTING -> ids[0].epoch++
        :: else
        fi;
        if
        :: ids[1].state != COMMITTING -> ids[1].epoch++
        :: else
        fi }
    :: atomic { at_event == ev_count -> assert(false) /* the whole trace was followed */ }
#endif
    od
}

init {
    byte n;
    atomic {
        c_code {
            OWNERS = given("OWNERS", 2); LATE = given("LATE", 2); EPOCHS = given("EPOCHS", 1);
            IDS = given("IDS", 2); CHECK = given("CHECK", 1);
            FIRST = given("FIRST", 1); SETTLE = given("SETTLE", 1); LOGFIRST = given("LOGFIRST", 1);
            WIRE = given("WIRE", 0); COMMITS = given("COMMITS", 2);
            now.lives = given("LIVES", 2); now.faults = given("FAULTS", 1);
            now.expiries = given("EXPIRIES", 0);
        };
#ifdef TRACE
        c_code {
            int kind, who, number;
            while (ev_count < 4000 && scanf("%d %d %d", &kind, &who, &number) == 3) {
                ev_kind[ev_count] = kind; ev_who[ev_count] = who; ev_number[ev_count] = number;
                ev_count++;
            }
        };
#endif
        owner_json = OWNERS_MAX;
        do
        :: n < OWNERS -> run owner(n); n++
        :: else -> break
        od;
        n = 0;
        run world()
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The caller of calls.pml (client/c/call.c, call_wait.c): makes its calls, looks, sleeps, gives up, reaps what ended early. */
#define CALL ID(me, n)
#define BIT(id) (1 << (id))
#define AT(q) (first + (q) % NCRED)
#define OVER(r_, g_) (DG(q0[r_]) != (g_) || (DP(q0[r_]) != QUEUED && DP(q0[r_]) != HELD))

inline drain_cells(first_, over_)
{
    c = first_;
    do
    :: c < first_ + NCRED ->
        box_look(c);
        if
#ifndef TAKEUNSEALED
        :: ct == EMPTY || ((ct == UNSEALED || ct == BACK) && !(over_))
#else
        :: ct == EMPTY
#endif
        :: else ->
            BOX_TAKE(c, skip);
            if
#ifndef LEFTBACK
            :: ok && (ct == REPLY || ct == BACK) -> release_unread()
#else
            :: ok && ct == REPLY -> release_unread()
#endif
            :: else
            fi
        fi;
        c++
    :: else -> break
    od;
    c = 0; t = 0; ok = 0; ct = 0
}

/* try_reap of the call whose first cell is c_ */
inline try_reap(c_)
{
    R(over = OVER(lslot[c_], lgen[c_]));
    if
    :: over -> drain_cells(c_, 1); atomic { used[c_] = 0; lingers = lingers & ~(1 << (c_)); lslot[c_] = 0; lgen[c_] = 0 }
    :: else
    fi;
    over = 0
}

inline end_early()
{
#ifdef EARLYCELLS
    used[first] = 0
#else
    atomic { lslot[first] = r; lgen[first] = g; lingers = lingers | (1 << first) };
    try_reap(first)
#endif
}

/* call_cancel, rs_request_cancel */
inline cancel()
{
    R(w = q0[r]);
    ok = 0;
    if :: w == DW(g, 0, QUEUED) -> CAS(q0[r], w, DW(g, 0, DONE), skip) :: else fi;
    if
    :: ok -> free_request(r)
    :: else ->
#ifdef BLINDCANCEL
        R(q7[r] = DW(DG(q7[r]), 0, DONE));
#else
        CAS(q7[r], DW(g, 0, NONE), DW(g, 0, DONE), skip);
#endif
        drain_cells(first, 0);
        wake(room, 12)
    fi;
    early = 1; w = 0; ok = 0
}

/* accept_reply: the reply in slot TS(t). again: nothing came of it */
inline accept()
{
#ifdef TAKEFIRST
    BOX_TAKE(AT(number), skip);
    taken = ok;
#endif
    R(i = hid[TS(t)]; k = hnum[TS(t)]);
    if
#ifndef NOID
    :: i != CALL || k != number -> BOX_TAKE(AT(number), skip); if :: ok -> release_unread() :: else fi
    :: else ->
#else
    :: true ->
#endif
#ifdef BLINDEMPTY
        if
        :: k == NREP - 1 -> R(box[AT(number)] = 0; hold = NQ + TS(t) + 1; rd[hold - 1]++)
        :: else -> BOX_TAKE(AT(number), hold = NQ + TS(t) + 1; rd[hold - 1]++)
        fi;
#elif defined(TAKEFIRST)
        if :: taken -> hold = NQ + TS(t) + 1; rd[hold - 1]++ :: else fi;
#else
        BOX_TAKE(AT(number), hold = NQ + TS(t) + 1; rd[hold - 1]++);
#endif
        if
        :: hold ->
            /* It is mine, sealed, of this call, in its turn. */
            assert(bw[TS(t)] == DW(TG(t), nb, HELD) && bs[TS(t)] == ST(TG(t), 0, SEALED) && hid[TS(t)] == CALL && k == number);
            number++;
            R(bw[TS(t)] = DW(TG(t), 0, DONE); rd[hold - 1]--; hold = 0);
            free_reply(TS(t));
            if :: number == NREP -> got = got | BIT(CALL); used[first] = 0; open = 0 :: else fi
        :: else
        fi
    fi;
    i = 0; k = 0; ok = 0; taken = 0
}

/* look_well. again: what was found was not it, so there may be something else to find */
inline look_well()
{
#ifdef CELLFIRST
    box_look(AT(number));
    R(over = OVER(r, g));
#else
    R(over = OVER(r, g));
    box_look(AT(number));
#endif
    again = 0;
    if
    :: over && ct != REPLY && ct != STRAY ->
        assert(!(out & BIT(CALL))); /* the last reply is out and forgotten */
        early = 1; open = 0
    :: ct == REPLY -> again = 1; over = 0; accept()
    :: ct == STRAY -> again = 1; over = 0; BOX_TAKE(AT(number), skip)
    :: (ct == EMPTY || ct == UNSEALED || ct == BACK) && !over
    fi;
    over = 0; t = 0; ok = 0; ct = 0;
#ifdef STRAYSLEEP
    again = 0
#endif
}

proctype caller(byte me)
{
    byte n, r, g, first, number, lingers, over, i, k, c, hold, nb, v;
    byte used[NCELL], lslot[NCELL], lgen[NCELL];
    short x, w, t;
    bit ok, open, again, early, taken;
    mtype ct;
    nb = NUMBER_B(me);
end_admission:
    eA == ALIVE && nA == me + 1 && eB[nb] == ALIVE && nB[nb] == me + 1;
    do
    :: n < NM ->
        first = 0;
        do
#if NM > 1
        :: lingers & (1 << first) && OVER(lslot[first], lgen[first]) -> try_reap(first)
#endif
        :: used[first] && first + NCRED < NCELL -> first = first + NCRED
        :: !used[first] -> used[first] = 1; break
        od;
        atomic {
            (SP(qs[0]) == FREE || SP(qs[NQ - 1]) == FREE);
            crash();
            r = (SP(qs[0]) == FREE -> 0 : NQ - 1);
            g = SG(qs[r]) + 1; qs[r] = ST(g, 1, LOANED); assert(!rd[r])
        };
        R(q0[r] = DW(g, 0, QUEUED); qid[r] = CALL; qcell[r] = first);
        R(q7[r] = DW(g, 0, NONE));
        R(qs[r] = ST(g, 0, SEALED); open = 1);
        do
        :: open ->
#ifdef LOOKFIRST
            look_well();
#endif
            atomic { crash(); posted = posted | 1; v = posted };
#ifndef LOOKFIRST
            look_well();
#endif
            if
            :: open && given_up < MAXT -> given_up++; cancelled = cancelled | BIT(CALL); cancel(); open = 0
            :: open && !again ->
                atomic { crash(); if :: posted == v -> asleep = asleep | 1 :: else fi };
end_sleep:
                atomic {
                    if
                    :: !(asleep & 1)
                    :: deaths < MAXC -> deaths++; dead = dead | (1 << me); asleep = asleep & ~1; goto ended
                    fi
                }
            :: !open || again
            fi;
            again = 0; v = 0
        :: else -> break
        od;
        if :: early -> early = 0; end_early() :: else fi;
        n++; number = 0; g = 0; r = 0; first = 0
    :: else -> break
    od;
#ifdef REAP
    do
    :: me + 1 < NO -> break
    :: me + 1 == NO && first < NCELL && !(lingers & (1 << first)) -> first++
    :: me + 1 == NO && first < NCELL && lingers & (1 << first) -> atomic { OVER(lslot[first], lgen[first]) -> try_reap(first) }
    :: first == NCELL -> break
    od;
#endif
    fin = fin | (1 << me);
    if :: me + 1 < NO -> dead = dead | (1 << me) :: else fi; /* it leaves, and the next one comes */
ended:
    atomic {
        c = 0; do :: c < NCELL -> used[c] = 0; lslot[c] = 0; lgen[c] = 0; c++ :: else -> break od;
        n = 0; r = 0; g = 0; first = 0; number = 0; lingers = 0; over = 0; i = 0; k = 0; c = 0; hold = 0; nb = 0; v = 0;
        x = 0; w = 0; t = 0; ok = 0; open = 0; again = 0; early = 0; ct = 0
    }
}


/* SPDX-License-Identifier: Apache-2.0 */
/* The callee of calls.pml (client/c/reply.c; rs_reply_publish, rs_reply_take_back): takes requests, answers, takes back. */
/* rs_client_is_there in both rings, and rs_request_is_cancelled */
inline caller_is_gone()
{
    gone = 0;
#ifndef NOENTRY
    R(gone = (eA != ALIVE));
    if :: !gone -> R(gone = (nA != NONCE(id))) :: else fi;
    if :: !gone -> R(gone = (eB[nb] != ALIVE)) :: else fi;
    if :: !gone -> R(gone = (nB[nb] != NONCE(id))) :: else fi
#endif
}
inline is_cancelled()
{
    ok = 0;
#ifndef NOLOOK
    R(ok = (q7[r] == DW(g, 0, DONE)));
    assert(!ok || (cancelled & BIT(id))) /* by its own caller */
#endif
}

inline post()
{
    R(bw[s] = DW(TG(t), nb, HELD));
    CAS(box[cell], 0, t, skip)
}

/* The reply is published, or the loan given up: wanted. */
inline publish()
{
    armed = 0;
    do
    :: post();
        if
        :: ok -> break
        :: !ok && !armed -> atomic { crash(); room = room | 1; v = room; armed = 1 }
        :: !ok && armed ->
            caller_is_gone();
            if :: !gone -> is_cancelled() :: else -> ok = 1 fi;
            if
            :: ok -> R(bs[s] = ST(TG(t), 0, FREE)); wanted = 0; break
            :: else
            fi;
            atomic { crash(); if :: room == v -> asleep = asleep | (1 << me) :: else fi };
end_room:
            atomic {
                if
                :: !(asleep & (1 << me))
                :: deaths < MAXC -> deaths++; dead = dead | (1 << me); asleep = asleep & ~(1 << me); rd[hold - 1]--; goto ended
                fi;
                v = 0; armed = 0
            }
        fi
    od;
    armed = 0; v = 0; ok = 0
}

inline seal()
{
    R(assert(bs[s] == ST(TG(t), me, LOANED)); bs[s] = ST(TG(t), 0, SEALED); if :: hnum[s] == NREP - 1 -> out = out | BIT(id) :: else fi)
}

/* rs_reply_take_back: not wanted any more, unless the caller has it. won: by the cell */
inline take_back()
{
#ifdef ONESTEP
    CAS(box[cell], t, 0, skip);
#else
    CAS(box[cell], t, t | 1, skip);
#endif
    won = ok;
#ifdef WONONLY
    if
    :: !won
#else
    if
    :: !won && !gone
#endif
    :: else ->
        wanted = !won;
        CAS(bw[s], DW(TG(t), nb, HELD), DW(TG(t), 0, DONE), out = out & ~BIT(id));
        free_reply(s);
        if
        :: won ->
            CAS(box[cell], t | 1, 0, skip);
#ifndef QUIETBACK
            if :: ok -> wake(room, 12) :: else fi
#endif
        :: else
        fi
    fi;
    won = 0; ok = 0
}

inline let_go()
{
    R(assert(q0[r] == DW(g, me, HELD)); q0[r] = DW(g, 0, DONE); rd[r]--; hold = 0);
    free_request(r)
}

#define TAKEABLE(r_) (DP(q0[r_]) == QUEUED && qs[r_] == ST(DG(q0[r_]), 0, SEALED))
proctype callee(byte me)
{
    byte r, g, id, nb, first, cell, number, s, hold, v;
    short x, w, t;
    bit ok, gone, won, armed, wanted;
end_idle:
    do
    :: atomic { TAKEABLE(0) || TAKEABLE(NQ - 1); r = (TAKEABLE(0) -> 0 : NQ - 1) };
        R(w = q0[r]);
        R(x = qs[r]);
        ok = 0;
        if
        :: DP(w) == QUEUED && x == ST(DG(w), 0, SEALED) ->
            CAS(q0[r], w, DW(DG(w), me, HELD), rd[r]++; hold = r + 1; busy = busy | (1 << me); assert(!exec[qid[r]]); exec[qid[r]] = 1)
        :: else
        fi;
        x = 0;
        if
        :: ok ->
            R(id = qid[r]; first = qcell[r]; g = DG(w); nb = NUMBER_B(NONCE(id) - 1));
            ok = 0; w = 0; wanted = 1;
            do
            :: wanted && number < NREP ->
                cell = first + number % NCRED;
                atomic {
                    (SP(bs[0]) == FREE || SP(bs[NB - 1]) == FREE);
                    crash();
                    s = (SP(bs[0]) == FREE -> 0 : NB - 1);
                    t = TK(SG(bs[s]) + 1, s, 0); bs[s] = ST(TG(t), me, LOANED)
                };
                R(assert(!rd[NQ + s]); hid[s] = id; hnum[s] = number);
#ifdef RELEASEFIRST
                if :: number == NREP - 1 -> let_go() :: else fi;
#endif
#ifdef WAKEFIRST
                publish(); wake(posted, 1); seal();
#elif defined(SEALFIRST)
                R(bw[s] = DW(TG(t), nb, HELD)); seal(); post(); wake(posted, 1);
#elif defined(EARLYLOOK)
                publish(); caller_is_gone(); is_cancelled(); v = ok; if :: wanted -> seal(); wake(posted, 1) :: else fi;
#else
                publish(); if :: wanted -> seal(); wake(posted, 1) :: else fi;
#endif
                if
                :: wanted ->
#ifdef EARLYLOOK
                    ok = v; v = 0;
#else
                    caller_is_gone();
                    is_cancelled();
#endif
                    if :: gone || ok -> take_back() :: else fi;
                    number++
                :: else
                fi;
                gone = 0; s = 0; t = 0; ok = 0
#ifdef GIVEUP
            :: wanted && number < NREP -> wanted = 0
#endif
            :: else -> break
            od;
#ifdef RELEASEFIRST
            if :: hold -> let_go() :: else fi;
#else
            let_go();
#endif
#ifndef QUIETGONE
            if :: !wanted -> wake(posted, 1) :: else fi;
#endif
            busy = busy & ~(1 << me)
        :: else
        fi;
        r = 0; g = 0; id = 0; nb = 0; first = 0; cell = 0; number = 0; w = 0; wanted = 0
    od;
ended:
    atomic {
        busy = busy & ~(1 << me);
        r = 0; g = 0; id = 0; nb = 0; first = 0; cell = 0; number = 0; s = 0; hold = 0; v = 0;
        x = 0; w = 0; t = 0; ok = 0; gone = 0; won = 0; armed = 0; wanted = 0
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls over two rings (proto/box.c; client/c/call.c, call_wait.c, reply.c; proxy/call_cells.c): request words in ring A, slots of
 * replies in ring B, the cells between them, cancellation, sleepers, deaths at any step, the sweeps of both sidecars, numbers that are
 * given anew. A request has word 0 and the cancel word, a reply word 0. Inboxes and bitmaps have models of their own.
 *
 * NO owners have the caller's number one after the other, each makes NM calls with NREP replies and NCRED credits; NQ request slots,
 * NB slots of replies, NCELL cells; NK callees. MAXC deaths, MAXR restarts of sidecars, MAXT calls that their caller gives up, GIVEUP
 * a callee may let a request go unanswered. OTHERB: the second owner has another number in ring B, and somebody else has the first's.
 * PASSER: somebody else uses a slot of ring A. REAP: at last the caller comes back to calls that ended early. TICK n: n times all sleepers look again when nothing else happens.
 *
 * Wrong on purpose: SEALFIRST the cell is posted after the seal; CELLFIRST who asks whether the callee is gone looks at the cell, then
 * at the word; REQUEUE the sweep queues a request again; NOCLEAR a box is not emptied at an admission; NOID a reply's call id is not
 * looked at; BLINDCANCEL a cancel compares no generation; WAKEFIRST the wake comes before the seal; LOOKFIRST the caller looks before it arms;
 * NOSWEEPWAKE the sweep wakes nobody; SWEPTASLEEP it wakes the boxes of the living alone; NOLOOK, NOENTRY, EARLYLOOK the callee looks at
 * the cancel word, or the entries, not at all, or before the seal; RELEASEFIRST the request is let go before the last reply; ONESTEP a
 * reply is taken back by emptying its cell; WONONLY of a caller that is gone it is left unless the cell was won; LEFTBACK one that is half
 * taken back is left for good; TAKEUNSEALED a cancel takes cells that are not sealed; EARLYCELLS cells of a cancelled call are used again at once;
 * LATEDEAD ring B is swept before the entry is DEAD; LEFTQUEUED the sweep leaves requests of the dead; NOSTATE a look does not
 * look at the state; QUIETTAKE, QUIETBACK who empties a cell wakes nobody; BLINDEMPTY the last reply's cell is emptied without a look whether the
 * reply is still the caller's; TAKEFIRST the cell is emptied before the header is read; STRAYSLEEP who dropped a stray sleeps without a
 * look; NONONCE the audit trusts every holder; QUIETGONE who lets a request go unanswered wakes nobody. */
#ifndef NO
#define NO 1
#endif
#ifndef NM
#define NM 1
#endif
#ifndef NREP
#define NREP 1
#endif
#ifndef NCRED
#define NCRED 1
#endif
#ifndef NCELL
#define NCELL NCRED
#endif
#ifndef NQ
#define NQ 1
#endif
#ifndef NB
#define NB 1
#endif
#ifndef NK
#define NK 1
#endif
#ifndef MAXC
#define MAXC 0
#endif
#ifndef MAXR
#define MAXR 0
#endif
#ifndef MAXT
#define MAXT 0
#endif
#ifndef TICK
#define TICK 0
#endif
#define FREE 0
#define LOANED 1
#define SEALED 2
#define NONE 0
#define QUEUED 1
#define HELD 2
#define DONE 3
/* state: generation, owner 2, phase 2. In ring A only callers loan here, in ring B callees. */
#define ST(g, o, p) (((g) << 4) | ((o) << 2) | (p))
#define SG(x) ((x) >> 4)
#define SO(x) (((x) >> 2) & 3)
#define SP(x) ((x) & 3)
#define DW(g, h, p) (((g) << 4) | ((h) << 2) | (p))
#define DG(x) ((x) >> 4)
#define DH(x) (((x) >> 2) & 3)
#define DP(x) ((x) & 3)
/* ticket in a cell: generation, slot 2, being taken back 1; never 0 */
#define TK(g, s, b) (((g) << 3) | ((s) << 1) | (b))
#define TG(t) ((t) >> 3)
#define TS(t) (((t) >> 1) & 3)
#define TB(t) ((t) & 1)
/* Processes: owners of the number 0 and 1, callees 2 and 3, sidecars 4 (ring A) and 5 (ring B). */
#define IS_CALLER(k) ((k) < 2)
#define NUMBER(k) (IS_CALLER(k) -> 1 : (k))
#ifdef OTHERB
#define NUMBER_B(k) ((k) + 1)
#else
#define NUMBER_B(k) 1
#endif
#define ID(k, n) ((k) * 2 + (n) + 1)
#define NONCE(id) (((id) + 1) / 2)
#define OTHER 3 /* nonce of somebody else */
#define UNUSED 0
#define ALIVE 1
#define DEAD 2
mtype = { EMPTY, REPLY, UNSEALED, BACK, STRAY, GONE };

short qs[NQ], q0[NQ], q7[NQ]; /* requests: state, word 0, cancel word */
byte qid[NQ], qcell[NQ];      /* header: call id, first cell */
short bs[NB], bw[NB];         /* replies: state, word 0 */
byte hid[NB], hnum[NB];       /* header: call id, number */
short box[NCELL];
byte posted, room;            /* wait words: sequence, futex armed */
byte eA, nA, eB[4], nB[4];    /* client entries: phase, nonce; in ring B by number */
byte asleep;                  /* in FUTEX_WAIT: bit 0 a caller, 2 and 3 callees */
byte dead, sweptA, sweptB, deaths, restarts, admA, admB, ticks, given_up;
/* Ghosts. */
byte rd[NQ + NB];             /* who reads the body */
byte fin, busy, cancelled, out, got; /* processes; call ids */
bit exec[5];

inline crash()
{
    if
    :: me < 4 && deaths < MAXC ->
        deaths++; dead = dead | (1 << me);
        if :: hold -> rd[hold - 1]-- :: else fi;
        goto ended
    :: me >= 4 && restarts < MAXR -> restarts++; goto ended
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }
/* A compare-and-swap, and what happens with it when it is won. */
#define CAS(word_, old_, new_, with_) atomic { crash(); if :: word_ == (old_) -> word_ = new_; ok = 1; with_ :: else -> ok = 0 fi }

/* rs_wait_wake; who sleeps there: bits_ */
inline wake(word_, bits_)
{
    R(ok = word_ & 1);
    if
    :: ok ->
        atomic { crash(); if :: word_ & 1 -> word_ = (word_ + 1) & 7 :: else -> ok = 0 fi };
        if :: ok -> R(asleep = asleep & ~(bits_)) :: else fi
    :: else
    fi;
    ok = 0
}

inline free_request(r_)
{
    R(x = qs[r_]);
    if
    :: SP(x) == SEALED ->
        R(w = q0[r_]);
        if
        :: DG(w) == SG(x) && (DP(w) == QUEUED || DP(w) == HELD)
        :: else ->
#ifdef PASSER
            R(w = q7[r_]);
            if
            :: DG(w) == SG(x) && DP(w) == QUEUED
            :: else -> CAS(qs[r_], x, ST(SG(x), 0, FREE), assert(!rd[r_]))
            fi
#else
            CAS(qs[r_], x, ST(SG(x), 0, FREE), assert(!rd[r_]))
#endif
        fi
    :: else
    fi;
    x = 0; w = 0; ok = 0
}

inline free_reply(s_)
{
    R(x = bs[s_]);
    if
    :: SP(x) == SEALED ->
        R(w = bw[s_]);
        if
        :: DG(w) == SG(x) && DP(w) == HELD
        :: else -> CAS(bs[s_], x, ST(SG(x), 0, FREE), assert(!rd[NQ + s_]))
        fi
    :: else
    fi;
    x = 0; w = 0; ok = 0
}

/* rs_box_look; what the cell holds: t, and what that is: ct */
inline box_look(c_)
{
    R(t = box[c_]);
    if
    :: !t -> ct = EMPTY
    :: else ->
        R(x = bs[TS(t)]);
        if
        :: SG(x) != TG(t) -> ct = STRAY
#ifndef NOSTATE
        :: SG(x) == TG(t) && SP(x) == LOANED -> ct = UNSEALED
        :: SG(x) == TG(t) && SP(x) == FREE -> ct = STRAY
        :: SG(x) == TG(t) && SP(x) == SEALED ->
#else
        :: SG(x) == TG(t) ->
#endif
            R(w = bw[TS(t)]);
            if
            :: w != DW(TG(t), nb, HELD) -> ct = STRAY
            :: else -> ct = (TB(t) -> BACK : REPLY)
            fi
        fi
    fi;
    x = 0; w = 0
}

/* rs_box_take; ok. with_: what happens with it */
#define BOX_TAKE(c_, with_) CAS(box[c_], t, 0, with_); wake_room()
inline wake_room()
{
#ifndef QUIETTAKE
    if :: ok -> wake(room, 12); ok = 1 :: else fi
#else
    skip
#endif
}

/* rs_ring_release of the lease that t names */
inline release_unread()
{
    CAS(bw[TS(t)], DW(TG(t), nb, HELD), DW(TG(t), 0, DONE), skip);
    if :: ok -> free_reply(TS(t)) :: else fi
}

#include "caller.pml"
#include "callee.pml"

/* ---- the sidecars ---- */

#define NEXT_DEAD(swept_) atomic { dead & ~swept_; j = 0; do :: !(((dead & ~swept_) >> j) & 1) -> j++ :: else -> break od }

/* rs_repair_sweep of process j in ring A */
inline sweep_requests()
{
    r = 0;
    do
    :: r < NQ ->
        R(x = qs[r]);
        if
        :: SP(x) == LOANED && IS_CALLER(j) -> CAS(qs[r], x, ST(SG(x), 0, FREE), skip)
        :: else ->
            R(w = q0[r]);
            if
#ifdef REQUEUE
            :: DP(w) == HELD && DH(w) == NUMBER(j) -> CAS(q0[r], w, DW(DG(w), 0, QUEUED), skip)
#else
            :: DP(w) == HELD && DH(w) == NUMBER(j) -> CAS(q0[r], w, DW(DG(w), 0, DONE), skip)
#endif
#ifndef LEFTQUEUED
            :: IS_CALLER(j) && x == ST(DG(w), 0, SEALED) && DP(w) == QUEUED -> CAS(q0[r], w, DW(DG(w), 0, DONE), skip)
#endif
            :: else
            fi;
            free_request(r)
        fi;
        r++
    :: else -> break
    od;
    r = 0; x = 0; w = 0; ok = 0
}

/* rs_repair_wake: the boxes of those who are ALIVE, or not UNUSED */
inline wake_boxes()
{
#if defined(NOSWEEPWAKE)
    skip
#elif defined(SWEPTASLEEP)
    if :: eA == ALIVE -> R(posted = ((posted | 1) + 1) & 7; room = ((room | 1) + 1) & 7; asleep = 0) :: else fi
#else
    if :: eA != UNUSED -> R(posted = ((posted | 1) + 1) & 7; room = ((room | 1) + 1) & 7; asleep = 0) :: else fi
#endif
}

proctype sidecar_a(byte me)
{
    byte j, r, hold;
    short x, w;
    bit ok;
end_rest:
    do
    :: NEXT_DEAD(sweptA);
        if :: IS_CALLER(j) -> R(eA = DEAD) :: else fi;
        sweep_requests();
        wake_boxes();
        atomic { crash(); if :: IS_CALLER(j) -> eA = UNUSED :: else fi; sweptA = sweptA | (1 << j); j = 0 }
    :: eA == UNUSED && admA < NO -> /* admit_anew */
        R(nA = admA + 1);
#ifndef NOCLEAR
        do
        :: r < NCELL -> R(box[r] = 0); r++
        :: else -> break
        od;
        r = 0;
#endif
        R(eA = ALIVE; admA++)
    od;
ended:
    atomic { j = 0; r = 0; x = 0; w = 0; ok = 0 };
    goto end_rest
}

inline sweep_replies()
{
    r = 0;
    do
    :: r < NB ->
        R(x = bs[r]);
        if
        :: SP(x) == LOANED && SO(x) == j && !IS_CALLER(j) -> CAS(bs[r], x, ST(SG(x), 0, FREE), skip)
        :: else ->
            R(w = bw[r]);
            if
            :: DP(w) == HELD && IS_CALLER(j) && DH(w) == NUMBER_B(j) -> CAS(bw[r], w, DW(DG(w), 0, DONE), skip)
            :: else
            fi;
            free_reply(r)
        fi;
        r++
    :: else -> break
    od;
    r = 0; x = 0; w = 0; ok = 0
}

/* rs_repair_audit: what nobody's number holds, and what a number holds that was given anew since */
inline audit()
{
    r = 0;
    do
    :: r < NB ->
        R(x = bs[r]);
        if
        :: SP(x) == SEALED ->
            R(w = bw[r]);
            if
#ifdef NONONCE
            :: w == DW(SG(x), DH(w), HELD) && eB[DH(w)] == UNUSED -> CAS(bw[r], w, DW(DG(w), 0, DONE), skip)
#else
            :: w == DW(SG(x), DH(w), HELD) && (eB[DH(w)] == UNUSED || nB[DH(w)] != NONCE(hid[r])) ->
                CAS(bw[r], w, DW(DG(w), 0, DONE), skip)
#endif
            :: else
            fi;
            free_reply(r)
        :: else
        fi;
        r++
    :: else -> break
    od;
    r = 0; x = 0; w = 0; ok = 0
}

proctype sidecar_b(byte me)
{
    byte j, r, hold;
    short x, w;
    bit ok;
end_rest:
    do
    :: NEXT_DEAD(sweptB);
#ifdef LATEDEAD
        sweep_replies();
#endif
        if :: IS_CALLER(j) -> R(eB[NUMBER_B(j)] = DEAD) :: else fi;
#ifndef LATEDEAD
        sweep_replies();
#endif
        audit();
        atomic { crash(); if :: IS_CALLER(j) -> eB[NUMBER_B(j)] = UNUSED :: else fi; sweptB = sweptB | (1 << j); j = 0 }
    :: eB[NUMBER_B(admB)] == UNUSED && admB < NO && sweptB & 1 ->
        R(nB[NUMBER_B(admB)] = admB + 1);
#ifdef OTHERB
        atomic { if :: admB == 1 -> nB[1] = OTHER; eB[1] = ALIVE :: else fi };
#endif
        R(eB[NUMBER_B(admB)] = ALIVE; admB++)
    od;
ended:
    atomic { j = 0; r = 0; x = 0; w = 0; ok = 0 };
    goto end_rest
}

/* ---- at rest ---- */

#define CALLEES_DEAD ((dead >> 2) == (1 << NK) - 1)
#define AT_END(k) ((fin >> (k)) & 1 || (dead >> (k)) & 1)
proctype monitor()
{
    byte i;
#if TICK > 0
    do
    :: timeout -> if :: ticks < TICK && asleep -> ticks++; asleep = 0 :: else -> break fi
    od;
#endif
    timeout ->
        atomic {
            /* Every call has ended, but those that wait for a worker. */
            assert(AT_END(0) || (CALLEES_DEAD && (DP(q0[0]) == QUEUED || DP(q0[NQ - 1]) == QUEUED)));
            assert(NO == 1 || AT_END(1) || CALLEES_DEAD);
            assert(!busy || CALLEES_DEAD);
            /* No slot is left; who waits for a worker has its request. */
            do
            :: i < NQ -> assert(SP(qs[i]) == FREE || (CALLEES_DEAD && DP(q0[i]) == QUEUED && !((dead >> (NONCE(qid[i]) - 1)) & 1))); i++
            :: else -> break
            od;
            i = 0; do :: i < NB -> assert(SP(bs[i]) == FREE); i++ :: else -> break od;
            i = 0; do :: i < NCELL -> assert(!box[i] || NO > 1 || dead); i++ :: else -> break od;
            /* Who lives and has not given up has each last reply that went out. */
            assert(!(out & ~got & ~cancelled & ((dead & 1 -> 0 : 6) | ((dead & 2) || NO == 1 -> 0 : 24))))
        }
}

#ifdef PASSER
/* A message for eight destinations, whose last word is where requests have their cancel word. */
proctype passer()
{
    byte g;
    atomic { SP(qs[0]) == FREE -> g = SG(qs[0]) + 1; qs[0] = ST(g, 2, LOANED) };
    q0[0] = DW(g, 0, NONE);
    q7[0] = DW(g, 0, QUEUED);
    qs[0] = ST(g, 0, SEALED);
    assert(qs[0] == ST(g, 0, SEALED) && q7[0] == DW(g, 0, QUEUED));
    atomic { q7[0] = DW(g, 0, DONE); qs[0] = ST(g, 0, FREE); g = 0 }
}
#endif

init
{
    byte j;
    atomic {
        run caller(0);
#if NO > 1
        run caller(1);
#endif
        eA = ALIVE; nA = 1; admA = 1; eB[1] = ALIVE; nB[1] = 1; admB = 1;
        j = 0; do :: j < NK -> run callee(2 + j); j++ :: else -> break od;
#ifdef PASSER
        run passer();
#endif
        run sidecar_a(4); run sidecar_b(5); run monitor();
        j = 0
    }
}

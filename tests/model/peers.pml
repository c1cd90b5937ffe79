/* SPDX-License-Identifier: Apache-2.0 */
/* Two rings, three stages: A's messages go to B's inbox, B's to C's. Slot 0 is ring A's, slot 1 ring B's. B's worker releases a
 * message or passes it on in place, so that a cell of A's ring stands in C's inbox. Each sidecar sweeps its own ring alone, and
 * a client has another number in each ring.
 *
 * NM messages each of producers A and B, KT takes of each worker, MAXC deaths, MAXR restarts. ONLYCONSUMERS: only they die.
 * ONLYA: only A's sidecar is restarted; it is down as long as it likes. LATE: C's worker maps A's ring when it asks for it.
 * ONEWAY: B sends nothing.
 * Wrong on purpose: SWEEPALL a sidecar sweeps both rings by its own numbers. */
#define NS 2
#define NI 2
#define NP 2
#ifndef NC
#define NC 1
#endif
#ifndef NM
#define NM 1
#endif
#ifndef KT
#define KT 2
#endif
#ifndef MAXC
#define MAXC 1
#endif
#ifndef MAXR
#define MAXR 0
#endif
#define NK 2
#define NCL (NP + NK)
#define ALL ((1 << NCL) - 1)

byte dead, swept[2], fin, deaths, restarts;
bit opened; /* C's worker has asked for A's ring and got it */

#ifdef LATE
#define MAY_JUDGE(s) ((s) == 1 || me != NCL - 1 || opened)
#else
#define MAY_JUDGE(s) 1
#endif
/* Producers and sidecars judge their own ring, workers both. */
#define MAPPED(s) (quiet || (me < NP && (s) == me) || (me >= NP && me < NCL && MAY_JUDGE(s)) || (me >= NCL && (s) == me - NCL))
#define NOTE(s)
#define NUMBER(k, s) ((s) == 0 -> (k) + 1 : NCL - (k))
#ifdef SWEEPALL
#define SWEPT(k, s) NUMBER(k, me - NCL)
#define OWNS(s) 1
#else
#define SWEPT(k, s) NUMBER(k, s)
#define OWNS(s) (quiet || (s) == me - NCL)
#endif
#define RINGBIT(s) (1 << (s))
#define WAKE_EMPTY(ib) skip
#define WAKE_FULL(ib) skip

#ifdef ONLYCONSUMERS
#define MORTAL (me >= NP && me < NCL)
#else
#define MORTAL (me < NCL)
#endif
#ifdef ONLYA
#define REPLACED (me == NCL)
#else
#define REPLACED (me >= NCL)
#endif
inline crash()
{
    if
    :: MORTAL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
    :: REPLACED && restarts < MAXR && !quiet -> restarts++; goto out
    :: true
    fi
}

#include "core.pml"

inline push_and_ring(ib_, s_, d_)
{
    push(ib_, s_, d_);
    if :: got -> R(bell = bell | RINGBIT(s_)) :: else fi;
    got = 0
}

proctype producer(byte me)
{
    LOCALS;
    byte j;
    do
    :: j < NM ->
        atomic { crash(); x = st[me]; if :: SP(x) == FREE -> ok = 1 :: else -> ok = 0 fi };
        if
        :: ok ->
            atomic {
                crash();
                assert(st[me] == x); /* only this producer loans here */
                x = ST((SG(x) + 1) % GM, NUMBER(me, me), LOANED);
                st[me] = x; wr[me] = 1; content[me] = nmsg; mdest[nmsg] = 1 << me; m = nmsg; nmsg++; ok = 0
            };
            R(WORD(me, 0) = DW(SG(x), 0, me, 0, QUEUED));
            atomic { crash(); wr[me] = 0; st[me] = ST(SG(x), 0, SEALED); committed = committed | (1 << m); x = 0; m = 0 };
            push_and_ring(me, me, 0);
            j++
        :: else -> break
        fi
    :: else -> break
    od;
out:
    atomic { fin = fin | (1 << me); t = 0; c = 0; k = 0; a = 0; n = 0; m = 0; x = 0; w = 0; ok = 0; got = 0; j = 0 }
}

proctype consumer(byte me; byte mine)
{
    LOCALS;
    byte j;
    do
    :: j < KT ->
        take(mine);
        if
        :: got ->
            j++;
            if
            :: release()
            :: mine == 0 && s == 0 && !(mdest[content[s]] & 2) ->
                atomic {
                    crash();
                    w = WORD(s, d);
                    assert(DP(w) == HELD && DH(w) == NUMBER(me, s));
                    rd[s]--;
                    cons[content[s]] = cons[content[s]] | 1; mdest[content[s]] = mdest[content[s]] | 2;
                    WORD(s, d) = DW(DG(w), 0, 1, 0, QUEUED);
                    w = 0
                };
                push_and_ring(1, s, d)
            fi;
            s = 0; d = 0; got = 0; w = 0
        :: else ->
#ifdef LATE
            if :: um -> opened = 1; um = 0 :: else fi;
#endif
            bad = 0; um = 0;
            atomic {
                if
                :: (fin & ((1 << NP) - 1)) == (1 << NP) - 1 -> k = 1
                :: CF(CELL(mine, head[mine])) || AHEAD(CELL(mine, head[mine]), head[mine]) != 0 || (ov[mine] & 1) -> k = 0
                fi
            };
            if :: k -> break :: else fi
        fi
    :: else -> break
    od;
out:
    atomic {
        fin = fin | (1 << me);
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; f = 0; s2 = 0; d2 = 0; x = 0; w = 0;
        ok = 0; got = 0; um = 0; bad = 0; j = 0; whole = 0
    }
}

#define PENDING (dead & ~swept[me - NCL])
proctype sidecar(byte me)
{
    LOCALS;
    byte victim;
    goto go;
out: /* the next one adopts */
    atomic {
        swept[me - NCL] = 0; bell = bell | (1 << (me - NCL));
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; q = 0; qt = 0; f = 0; s2 = 0; d2 = 0; ib = 0; i = 0; m = 0; r = 0;
        x = 0; w = 0; ok = 0; got = 0; um = 0; bad = 0; whole = 0; victim = 0
    };
go:
ends:
    do
    :: atomic { !quiet && PENDING -> victim = 0; do :: !((PENDING >> victim) & 1) -> victim++ :: else -> break od };
        sweep(victim);
        audit();
        swept[me - NCL] = swept[me - NCL] | (1 << victim); victim = 0
    :: atomic { !quiet && ((bell >> (me - NCL)) & 1) -> bell = bell & ~(1 << (me - NCL)) }; audit()
    od
}

proctype checker()
{
    LOCALS;
    byte me, turn;
    timeout ->
        atomic {
            assert(fin == ALL && !(dead & ~swept[0]) && !(dead & ~swept[1]));
            quiet = 1; me = NCL;
            do
            :: turn < 5 ->
                r = 0;
                do
                :: r < NI ->
                    do
                    :: take(r); if :: got -> release(); s = 0; d = 0 :: else -> break fi
                    od;
                    r++
                :: else -> break
                od;
                if :: bell -> bell = 0; audit() :: else -> break fi;
                turn++
            :: else -> break
            od;
            s = 0;
            do :: s < NS -> assert(SP(st[s]) == FREE); s++ :: else -> break od;
            m = 0;
            do :: m < nmsg -> assert(!((committed >> m) & 1) || cons[m] == mdest[m]); m++ :: else -> break od;
            i = 0;
            do :: i < NI * NC -> assert(!CF(cell[i])); i++ :: else -> break od
        };
out:
    skip
}

init
{
    atomic {
        run producer(0);
#ifdef ONEWAY
        fin = 2;
#else
        run producer(1);
#endif
        run consumer(2, 0); run consumer(3, 1);
        run sidecar(NCL); run sidecar(NCL + 1);
        run checker()
    }
}

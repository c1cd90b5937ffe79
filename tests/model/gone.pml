/* SPDX-License-Identifier: Apache-2.0 */
/* The pod of stage A goes away for good at any moment: its producer and its sidecar stop for ever, nobody sweeps or audits its
 * ring any more. Stage B's consumers, which have the ring mapped, drain it; B's sidecar gives its number back when nothing
 * is left (proxy/peer_upstream.c: upstream_tick, is_spent). Nothing that was sealed is lost but what a dead consumer held.
 *
 * NM messages of A's one producer, NK consumers of B, of which MAXC die; NACKS nacks.
 * Wrong on purpose: ONLYCELLS queued words do not count as left; ONETICK consumers are told to walk only once. */
#ifndef NS
#define NS 2
#endif
#ifndef NM
#define NM 2
#endif
#ifndef NC
#define NC 1
#endif
#ifndef NK
#define NK 1
#endif
#ifndef MAXC
#define MAXC 0
#endif
#ifndef NACKS
#define NACKS 0
#endif
#ifndef TICKS
#define TICKS 1
#endif
#define NCL (1 + NK)
#define UNUSED 0
#define USED 1
#define GONE 2

bit gone;
byte table = USED, dead, swept, deaths, nacks;
bit mapped[NCL + 2];

#define A_IS(me_) ((me_) == 0 || (me_) == NCL)
#define MAPPED(s) (A_IS(me) || mapped[me])
#define KNOWN(s) (table != UNUSED)
#define NOTE(s)
#define NUMBER(k, s) ((k) + 1)
#define SWEPT(k, s) ((k) + 1)
#define OWNS(s) 1
#define RINGBIT(s) 1
#define WAKE_EMPTY(ib) skip
#define WAKE_FULL(ib) skip

inline crash()
{
    if
    :: gone && A_IS(me) -> goto out
    :: !A_IS(me) && me < NCL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
    :: !(gone && A_IS(me))
    fi
}

#include "core.pml"

proctype producer(byte me)
{
    LOCALS;
    byte j;
    do
    :: j < NM ->
end_full:
        atomic {
            if
            :: SP(st[0]) == FREE -> s = 0
            :: SP(st[NS - 1]) == FREE -> s = NS - 1
            :: gone -> goto out
            fi;
            crash();
            x = ST(SG(st[s]) + 1, 1, LOANED);
            st[s] = x; wr[s] = 1; content[s] = nmsg; mdest[nmsg] = 1; m = nmsg; nmsg++
        };
        R(WORD(s, 0) = DW(SG(x), 0, 0, 0, QUEUED));
        atomic { crash(); wr[s] = 0; st[s] = ST(SG(x), 0, SEALED); committed = committed | (1 << m); x = 0; m = 0 };
        push(0, s, 0);
        if :: got -> R(bell = 1); got = 0 :: else fi;
        j++; s = 0
    :: else -> break
    od;
out:
    atomic { s = 0; t = 0; c = 0; k = 0; a = 0; n = 0; m = 0; x = 0; w = 0; ok = 0; got = 0; j = 0 }
}

proctype consumer(byte me)
{
    LOCALS;
    do
    :: take(0);
        if
        :: got ->
            if
            :: release()
            :: atomic { nacks < NACKS -> nacks++ }; nack(0)
            fi;
            s = 0; d = 0; got = 0; w = 0
        :: else ->
            um = 0; bad = 0;
end_idle:
            atomic { /* woken by a push, an overflow, a changed table */
                (mapped[me] && (CF(CELL(0, head[0])) || AHEAD(CELL(0, head[0]), head[0]) != 0)) || (ov[0] & 1) ||
                    (mapped[me] && table == UNUSED);
                if :: table == UNUSED -> mapped[me] = 0; break :: else fi /* peers_refresh */
            }
        fi
    od;
out:
    atomic {
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; f = 0; s2 = 0; d2 = 0; x = 0; w = 0;
        ok = 0; got = 0; um = 0; bad = 0; whole = 0
    }
}

proctype sidecar_a(byte me)
{
    LOCALS;
    byte victim;
end_a:
    do
    :: atomic { dead & ~swept -> victim = 0; do :: !(((dead & ~swept) >> victim) & 1) -> victim++ :: else -> break od };
        sweep(victim);
        audit();
        swept = swept | (1 << victim); victim = 0
    :: atomic { bell -> crash(); bell = 0 }; audit()
    :: gone -> break
    od;
out:
    skip
}

/* message_left; got: something is left, k: a word that can be taken */
inline words_left()
{
    s = 0; got = 0;
    do
    :: s < NS && !k ->
        takeable(s, 0, 0);
        if
        :: ok -> got = 1; k = 1
        :: !ok && DP(w) == HELD && !((noticed >> (DH(w) - 1)) & 1) -> got = 1
        :: else
        fi;
        s++
    :: else -> break
    od;
    s = 0; ok = 0; w = 0; x = 0
}

/* cell_names; got */
inline cells_left()
{
    h = 0; got = 0;
    do
    :: h < NC && !got -> R(c = cell[h]); got = CF(c); h++
    :: else -> break
    od;
    h = 0; c = 0
}

/* upstream_tick; got: something is left */
inline tick()
{
    noticed = dead; /* places of dead workers are dropped between two ticks, never in one */
#ifndef ONETICK
    cells_left();
    if :: !got -> words_left() :: else fi;
    if :: k -> k = 0; overflow(0) :: else fi;
#endif
    cells_left();
#ifndef ONLYCELLS
    if :: !got -> words_left(); k = 0 :: else fi
#endif
}

#define NOBODY_LIVES ((dead & (((1 << NK) - 1) << 1)) == ((1 << NK) - 1) << 1)
/* B's sidecar: now and then, and when nothing else happens */
proctype sidecar_b(byte me)
{
    LOCALS;
    byte ticks, noticed;
    gone;
    table = GONE;
#ifdef ONETICK
    overflow(0);
#endif
    do
    :: ticks < TICKS -> ticks++; tick(); if :: !got -> break :: else -> got = 0 fi
    :: timeout ->
        r = ov[0];
        tick();
        if
        :: !got -> break
        :: else -> assert(ov[0] != r || NOBODY_LIVES); got = 0; r = 0 /* something is left: the consumers were told, or nobody will ever fetch it */
        fi
    od;
    table = UNUSED;
    got = 0;
    timeout ->
        atomic {
            i = 0;
            do
            :: i < NS ->
                assert(!TAKEABLE(dw[i], st[i], 0));                             /* nothing that waited is forgotten */
                assert(SP(st[i]) != SEALED || DP(dw[i]) != HELD || ((dead >> (DH(dw[i]) - 1)) & 1)); /* nor unmapped while held */
                i++
            :: else -> break
            od;
            i = 0;
            do :: i < nmsg -> assert(!((committed >> i) & 1) || cons[i] || dl[i * 2]); i++ :: else -> break od
        };
out:
    skip
}

proctype end_of_a()
{
    gone = 1
}

init
{
    byte j;
    atomic {
        run producer(0);
        j = 1; do :: j <= NK -> mapped[j] = 1; run consumer(j); j++ :: else -> break od;
        run sidecar_a(NCL);
        mapped[NCL + 1] = 1;
        run sidecar_b(NCL + 1);
        run end_of_a();
        j = 0
    }
}

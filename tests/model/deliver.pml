/* SPDX-License-Identifier: Apache-2.0 */
/* One ring: producers, competing consumers, the sidecar with sweep and audit beside the living, death of any client
 * between any two steps, restart of the sidecar in any step. Nothing is lost, doubled, leaked or read while written.
 *
 * NP producers x NM messages, NK consumers x KT takes (consumer k at inbox k mod NI), MAXC deaths, MAXR restarts, NACKS nacks.
 * FANOUT: 0 one inbox, 1 both, 2 any. FWD: a consumer of inbox 0 may pass its message on to inbox 1. FORK: it may pass it on
 * to inbox 1 and once more to its own. EXPIRE n messages end by expiry. DROP n: a producer without a slot drops the oldest
 * message, n times. NOAUDIT: no audit ever (for runs without deaths: nothing needs it). MEND: hints are looked at before each audit.
 * HOSTILE: once, at any time, head or tail is set to any value near. RUNG: the bell has rung, so an
 * audit runs beside the living.
 * Wrong on purpose, besides those of core.pml: LATEWORDS words are queued after the seal. DROPBLIND, DROPKEEP: drop-oldest
 * stores the word without comparing; leaves the cell. ORDER: what is dropped must be older than what stays. */
#ifndef NP
#define NP 1
#endif
#ifndef NM
#define NM 2
#endif
#ifndef NK
#define NK 2
#endif
#ifndef KT
#define KT 1
#endif
#ifndef MAXC
#define MAXC 1
#endif
#ifndef MAXR
#define MAXR 0
#endif
#ifndef NACKS
#define NACKS 0
#endif
#ifndef FANOUT
#define FANOUT 0
#endif
#ifndef EXPIRE
#define EXPIRE 0
#endif
#ifndef DROP
#define DROP 0
#endif
#if FANOUT || defined(FORK)
#define NW 2
#endif
#define NCL (NP + NK)
#define ALL ((1 << NCL) - 1)

#define MAPPED(s) 1
#define NOTE(s)
#define NUMBER(k, s) ((k) + 1)
#define SWEPT(k, s) ((k) + 1)
#define OWNS(s) 1
#define RINGBIT(s) 1
#define WAKE_EMPTY(ib) skip
#define WAKE_FULL(ib) skip

byte dead, swept, fin, deaths, restarts, nacks, expired;
bit forked[8];

/* A client dies, the sidecar is restarted, just before any access. */
inline crash()
{
    if
    :: me < NCL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
    :: me == NCL && restarts < MAXR && !quiet -> restarts++; goto out
    :: true
    fi
}

#include "core.pml"

/* rs_inbox_drop_oldest; got */
inline drop_oldest(ib_)
{
    got = 0; n = 0;
    R(h = head[ib_]);
    do
    :: n < NC && !got ->
        R(c = CELL(ib_, h));
        if
        :: AHEAD(c, h) < 0 || (AHEAD(c, h) == 0 && !CF(c)) -> break
        :: AHEAD(c, h) == 0 && CF(c) ->
            takeable(CS(c), CD(c), ib_);
            if
            :: ok ->
                atomic {
                    crash();
#ifdef DROPBLIND
                    if
                    :: true -> w = WORD(CS(c), CD(c));
#else
                    if
                    :: WORD(CS(c), CD(c)) == w ->
#endif
#ifdef ORDER
                        if
                        :: NS > 1 && TAKEABLE(WORD(1 - CS(c), 0), st[1 - CS(c)], ib_) -> assert(content[1 - CS(c)] > content[CS(c)])
                        :: else
                        fi;
#endif
                        assert(SP(st[CS(c)]) == SEALED && SG(st[CS(c)]) == DG(w));
                        WORD(CS(c), CD(c)) = DW(DG(w), 0, DT(w), DA(w), DONE);
                        cons[content[CS(c)]] = cons[content[CS(c)]] | (1 << (ib_));
                        got = 1
                    :: else
                    fi
                };
                if
                :: got ->
#ifndef DROPKEEP
                    clear_cell(ib_, h);
                    if :: ok -> help_head(ib_, h, h + 1) :: else fi;
                    takeable(CS(c), CD(c), ib_);
                    if :: ok -> overflow(ib_) :: else fi;
#endif
                    free_check(CS(c))
                :: else
                fi
            :: else
            fi
        :: else
        fi;
        h++; n++
    :: else -> break
    od;
    h = 0; c = 0; n = 0; x = 0; w = 0; ok = 0; f = 0
}

inline push_and_ring(ib_, s_, d_)
{
    push(ib_, s_, d_);
    if :: got -> R(bell = 1) :: else fi;
    got = 0
}

proctype producer(byte me)
{
    LOCALS;
    byte j, drops;
    do
    :: j < NM ->
        atomic {
            crash();
            if
            :: SP(st[0]) == FREE -> s = 0; x = st[0]; ok = 1
#if NS > 1
            :: SP(st[1]) == FREE -> s = 1; x = st[1]; ok = 1
#endif
            :: else -> ok = 0
            fi
        };
        if
        :: ok ->
            atomic {
                crash();
                if
                :: st[s] == x ->
                    x = ST((SG(x) + 1) % GM, me + 1, LOANED);
                    st[s] = x;
                    assert(!wr[s] && rd[s] == 0);
                    wr[s] = 1; content[s] = nmsg; m = nmsg; nmsg++; ok = 1
                :: else -> ok = 0
                fi
            };
            if
            :: ok ->
                ok = 0;
                if
#if FANOUT == 0 || FANOUT == 2
                :: r = 1
#if NI > 1
                :: r = 2
#endif
#endif
#if FANOUT > 0
                :: r = 3
#endif
                fi;
                mdest[m] = r;
#ifndef LATEWORDS
                R(WORD(s, 0) = DW(SG(x), 0, r == 2, 0, QUEUED));
#if NW > 1
                R(WORD(s, 1) = DW(SG(x), 0, r == 3, 0, (r == 3 -> QUEUED : NONE)));
#endif
#endif
                atomic { crash(); assert(st[s] == x); wr[s] = 0; st[s] = ST(SG(x), 0, SEALED); committed = committed | (1 << m) };
#ifdef LATEWORDS
                R(WORD(s, 0) = DW(SG(x), 0, r == 2, 0, QUEUED));
#endif
                x = 0; m = 0;
                push_and_ring(r == 2, s, 0);
                if :: r == 3 -> push_and_ring(1, s, 1) :: else fi;
                j++; r = 0; s = 0
            :: else -> x = 0; s = 0
            fi
        :: !ok && drops < DROP -> drops++; drop_oldest(0); if :: got -> got = 0 :: else -> break fi
        :: else -> break
        fi
    :: else -> break
    od;
out:
    atomic {
        fin = fin | (1 << me);
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; f = 0; s2 = 0; d2 = 0; m = 0; r = 0; x = 0; w = 0;
        ok = 0; got = 0; um = 0; bad = 0; j = 0; drops = 0
    }
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
#if NACKS > 0
            :: atomic { nacks < NACKS -> nacks++ }; nack(mine)
#endif
#ifdef FWD
            :: mine == 0 && !(mdest[content[s]] & 2) ->
                /* rs_ring_forward, one route: the own word, then its cell */
                atomic {
                    crash();
                    w = WORD(s, d);
                    rd[s]--;
                    cons[content[s]] = cons[content[s]] | 1; mdest[content[s]] = mdest[content[s]] | 2;
                    WORD(s, d) = DW(DG(w), 0, 1, 0, QUEUED);
                    w = 0
                };
                push_and_ring(1, s, d)
#endif
#ifdef FORK
            :: mine == 0 && d == 0 && !forked[content[s]] ->
                /* rs_ring_forward to (1, own): a word above the own one, the own word last, then both cells */
                R(w = WORD(s, 1));
                atomic {
                    crash();
                    if
                    :: WORD(s, 1) == w && DG(w) == DG(WORD(s, 0)) && DP(w) == NONE ->
                        WORD(s, 1) = DW(DG(w), 0, 1, 0, QUEUED);
                        mdest[content[s]] = mdest[content[s]] | 2; ok = 1
                    :: else -> ok = 0
                    fi
                };
                if
                :: ok ->
                    atomic {
                        crash();
                        w = WORD(s, 0);
                        forked[content[s]] = 1;
                        rd[s]--;
                        dl[content[s] * 2]--;
                        WORD(s, 0) = DW(DG(w), 0, 0, 0, QUEUED);
                        w = 0; ok = 0
                    };
                    push_and_ring(1, s, 1);
                    push_and_ring(0, s, 0)
                :: else -> release() /* no word left: the caller copies, then releases */
                fi
#endif
            fi;
            s = 0; d = 0; got = 0; w = 0
        :: else ->
            if :: bad -> bad = 0; R(bell = 1) :: else fi;
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

inline look_after()
{
    bell = 0;
#ifdef MEND
    ib = 0;
    do :: ib < NI -> mend_hints(ib); ib++ :: else -> break od;
    ib = 0;
#endif
#ifndef NOAUDIT
    audit()
#else
    skip
#endif
}

inline drain()
{
    r = 0;
    do
    :: r < NI ->
        do
        :: take(r); if :: got -> release(); s = 0; d = 0 :: else -> break fi
        od;
        assert(!bad);
        r++
    :: else -> break
    od
}

proctype sidecar()
{
    LOCALS;
    byte me, victim;
    me = NCL;
    goto go;
out: /* the next one adopts: hints, every dead number again, audit */
    atomic {
        swept = 0; bell = 1;
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; q = 0; qt = 0; f = 0; s2 = 0; d2 = 0; ib = 0; i = 0; m = 0; r = 0;
        x = 0; w = 0; ok = 0; got = 0; um = 0; bad = 0; whole = 0; victim = 0
    };
go:
    do
    :: dead & ~swept ->
        atomic { victim = 0; do :: !(((dead & ~swept) >> victim) & 1) -> victim++ :: else -> break od };
        sweep(victim);
        look_after();
        swept = swept | (1 << victim); victim = 0
    :: bell -> look_after()
#if EXPIRE > 0
    :: expired < EXPIRE ->
        /* expire_slot: state, header, word, then the CAS on the word */
        if :: s = 0 :: NS > 1 -> s = 1 fi;
        R(x = st[s]);
        R(m = content[s]);
        R(w = WORD(s, 0));
        if
        :: SP(x) == SEALED && DP(w) == QUEUED && DG(w) == SG(x) ->
            atomic {
                crash();
                expired++;
                if
                :: WORD(s, 0) == w ->
                    assert(m == content[s]);
                    WORD(s, 0) = DW(DG(w), 0, DT(w), DA(w), DONE);
                    cons[m] = cons[m] | (1 << DT(w)); ok = 1
                :: else -> ok = 0
                fi
            };
            if :: ok -> free_check(s) :: else fi
        :: else
        fi;
        s = 0; x = 0; w = 0; m = 0; ok = 0; f = 0
#endif
    :: fin == ALL && !(dead & ~swept) && !bell -> break
    od;
    atomic { /* all is over: what is left comes by the consumers' own steps */
        quiet = 1;
#ifdef HOSTILE
        look_after();
#endif
        drain();
        if :: bell -> look_after(); drain() :: else fi;
        s = 0;
        do :: s < NS -> assert(SP(st[s]) == FREE); s++ :: else -> break od; /* no slot leaked */
        m = 0;
        do :: m < nmsg -> assert(!((committed >> m) & 1) || cons[m] == mdest[m]); m++ :: else -> break od; /* nothing lost */
        i = 0;
        do :: i < NI * NC -> assert(!CF(cell[i])); i++ :: else -> break od /* every cell can be filled again */
    }
}

#ifdef HOSTILE
proctype vandal()
{
    byte v;
    select(v : P0 - NC - 1 .. P0 + 2 * NC + 1);
    atomic { hostile = 1; if :: head[0] = v :: tail[0] = v fi; v = 0 }
}
#endif

init
{
    byte j;
    atomic {
        j = 0; do :: j < NI * NC -> cell[j] = CE(0, LAP(P0), 0, 0); j++ :: else -> break od;
        j = 0; do :: j < NI -> head[j] = P0; tail[j] = P0; j++ :: else -> break od;
        j = 0; do :: j < NP -> run producer(j); j++ :: else -> break od;
        j = 0; do :: j < NK -> run consumer(NP + j, j % NI); j++ :: else -> break od;
        run sidecar();
#ifdef RUNG
        bell = 1;
#endif
#ifdef HOSTILE
        run vandal();
#endif
        j = 0
    }
}

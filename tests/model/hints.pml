/* SPDX-License-Identifier: Apache-2.0 */
/* Cells, head and tail alone: laps that wrap, winners that sleep before they store the tail, stale and doubled cells, hints
 * set to nonsense at any time and mended beside living pushers and takers. Every slot is one message, used once.
 *
 * NP producers x NM messages, NK consumers. EXPIRE n words end while their cells stay; DROP n end and their cells go. DOUBLE n: n times a queued word gets one
 * more cell (an audit that read the word before it was taken). NACKS n. P0: first position; LM: laps are counted modulo LM.
 * HOSTILE n: n times head or tail is set to any value near; then the sidecar looks at the hints before each audit.
 * Nothing needs an audit, and no take says INTERNAL, unless HOSTILE.
 * Wrong on purpose, besides core.pml's: NOMEND the sidecar audits without a look at the hints. */
#ifndef NP
#define NP 2
#endif
#ifndef NM
#define NM 2
#endif
#ifndef NK
#define NK 1
#endif
#ifndef EXPIRE
#define EXPIRE 0
#endif
#ifndef DROP
#define DROP 0
#endif
#ifndef DOUBLE
#define DOUBLE 0
#endif
#ifndef NACKS
#define NACKS 0
#endif
#ifndef HOSTILE
#define HOSTILE 0
#endif
#define NS (NP * NM)
#define ND 1
#define NOSLOTS
#if HOSTILE
#define MEND
#endif
#define MAPPED(s) 1
#define NOTE(s)
#define NUMBER(k, s) ((k) + 1)
#define SWEPT(k, s) ((k) + 1)
#define OWNS(s) 1
#define RINGBIT(s) 1
#define WAKE_EMPTY(ib) skip
#define WAKE_FULL(ib) skip
#define SIDECAR (NP + NK)

byte fin, expired, dropped, doubled, nacks;
inline crash() { skip }

#include "core.pml"

proctype producer(byte me)
{
    LOCALS;
    byte j;
    do
    :: j < NM ->
        s = me * NM + j;
        WORD(s, 0) = DW(0, 0, 0, 0, QUEUED);
        push(0, s, 0);
        if :: got -> bell = 1; got = 0 :: else fi;
        j++
    :: else -> break
    od;
    atomic { fin++; s = 0; j = 0 }
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
#if NACKS > 0
            :: atomic { nacks < NACKS -> nacks++ }; nack(0)
#endif
            fi;
            s = 0; d = 0; got = 0; w = 0
        :: else ->
            if :: bad -> assert(hostile); bad = 0; bell = 1; bell == 0 :: else fi; /* the caller waits for the sidecar */
            atomic {
                if
                :: fin >= NP -> k = 1
                :: CF(CELL(0, head[0])) || AHEAD(CELL(0, head[0]), head[0]) != 0 || (ov[0] & 1) -> k = 0
                fi
            };
            if :: k -> break :: else fi
        fi
    od;
    atomic { k = 0; fin++ }
}

#if EXPIRE > 0
proctype expiry()
{
    byte s;
    do
    :: atomic {
            expired < EXPIRE && fin < NP -> select(s : 0 .. NS - 1);
            if
            :: DP(WORD(s, 0)) == QUEUED -> WORD(s, 0) = DW(0, 0, 0, 0, DONE); cons[s] = 1; expired++
            :: else
            fi;
            s = 0
        }
    :: fin >= NP || expired == EXPIRE -> break
    od
}
#endif

#if DROP > 0
/* rs_inbox_drop_oldest by producers of other rings than those before it: a word ends, then its cell is cleared out of turn. */
proctype dropper()
{
    byte s, i;
    short c;
    do
    :: atomic {
            dropped < DROP && fin < NP -> select(i : 0 .. NC - 1);
            c = cell[i]; s = CS(c);
            if
            :: CF(c) && DP(WORD(s, 0)) == QUEUED -> WORD(s, 0) = DW(0, 0, 0, 0, DONE); cons[s] = 1; dropped++
            :: else -> c = 0
            fi
        };
        atomic { if :: CF(c) && cell[i] == c -> cell[i] = CE(0, (CL(c) + 1) % LM, 0, 0) :: else fi; c = 0; s = 0; i = 0 }
    :: fin >= NP || dropped == DROP -> break
    od
}
#endif

#if DOUBLE > 0
/* An audit whose look at the cells came before the first cell of the word: the word is pushed once more. */
proctype doubler(byte me)
{
    LOCALS;
    do
    :: atomic { doubled < DOUBLE && fin < NP -> doubled++; select(s : 0 .. NS - 1) };
        if :: DP(WORD(s, 0)) == QUEUED -> push(0, s, 0); if :: got -> bell = 1; got = 0 :: else fi :: else fi;
        s = 0
    :: fin >= NP || doubled == DOUBLE -> break
    od
}
#endif

#if HOSTILE
proctype vandal()
{
    byte v, j;
    do
    :: j < HOSTILE ->
        atomic {
            if :: v = P0 - NC - 1 :: v = P0 - 1 :: v = P0 + 1 :: v = P0 + NC :: v = P0 + 2 * NC + 1 fi;
            hostile = 1; if :: head[0] = v :: tail[0] = v fi; v = 0; j++
        }
    :: fin == NP + NK -> break
    :: j == HOSTILE -> break
    od
}
#endif

inline look_after()
{
    bell = 0;
#if HOSTILE && !defined(NOMEND)
    mend_hints(0);
#endif
    atomic { audit() } /* its steps beside the living are deliver.pml's matter */
}

proctype sidecar()
{
    LOCALS;
    byte me;
    me = SIDECAR;
    do
    :: bell -> look_after()
    :: fin == NP + NK -> break
    od;
    atomic {
        quiet = 1;
#if HOSTILE
        look_after();
#endif
        do
        :: take(0);
            if
            :: got -> release(); s = 0; d = 0
            :: else -> break
            fi
        od;
        assert(!bad);
        m = 0;
        do :: m < NS -> assert(cons[m] == 1); m++ :: else -> break od;
        i = 0;
        do :: i < NC -> assert(!CF(cell[i])); i++ :: else -> break od
    }
}

init
{
    byte j;
    atomic {
        j = 0; do :: j < NC -> cell[j] = CE(0, LAP(P0), 0, 0); j++ :: else -> break od;
        j = 0; do :: j < NS -> content[j] = j; mdest[j] = 1; j++ :: else -> break od;
        head[0] = P0; tail[0] = P0;
        j = 0; do :: j < NP -> run producer(j); j++ :: else -> break od;
        j = 0; do :: j < NK -> run consumer(NP + j); j++ :: else -> break od;
        run sidecar();
#if EXPIRE > 0
        run expiry();
#endif
#if DROP > 0
        run dropper();
#endif
#if DOUBLE > 0
        run doubler(SIDECAR);
#endif
#if HOSTILE
        run vandal();
#endif
        j = 0
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The word `readers` of one slot (proto/readers.c) beside its delivery words: readings by ticket, their count, Free, time to live,
 * free check, sweep, restart of the sidecar. Nobody's body is taken away, STALE comes only when it is over, nothing stays sealed.
 *
 * A publisher makes NG generations. NR readers x KR readings (newest ticket, the one before, or RGM older: the same short
 * generation); NF who Free; NK consumers of the delivery words; MAXC deaths, MAXR restarts, MAXE times the time to live ends.
 * PASS: a reader may add a reading for another (rs_ring_readers_add) before it ends its own; RETIRE: it may end the ticket
 * (rs_ring_read_retire). RGM: generations in `readers` are counted modulo RGM, in `state` and tickets they are not. LEFT n readings, KEPT: n or kept.
 * ROUTED: word 0 is queued. READQ: a reader may queue word 1.
 * Wrong on purpose: FREECHK Free looks at readers, at state, then swaps, without a bit on; FREETEXT not even at state; UNDERFLOW the
 * end counts below 0; ENDTWO bit and count go in two steps; COUNTUNDO an undone begin counts; UNDOQUIET an undone begin never retires;
 * SWEEPQUIET the sweep runs no free check; NOTTL nothing ends by time; WORDSCAN the free check scans the words before readers;
 * ADDPLAIN a reading is added by a load and a store; ADDLATE after the own one ended, whatever the word says;
 * RETIRELATE a ticket is ended so after the own reading. */
#ifndef NG
#define NG 2
#endif
#ifndef MAXC
#define MAXC 1
#endif
#ifndef MAXR
#define MAXR 0
#endif
#ifndef MAXE
#define MAXE 1
#endif
#ifndef NR
#define NR 2
#endif
#ifndef KR
#define KR 1
#endif
#ifndef NF
#define NF 1
#endif
#ifndef NK
#define NK 1
#endif
#ifndef LEFT
#define LEFT 2
#endif
#ifndef RGM
#define RGM 8
#endif
#ifdef NOTTL
#define ENDS_BY_TIME 0
#else
#define ENDS_BY_TIME 1
#endif
#define NW 2
#define FREE 0
#define LOANED 1
#define SEALED 2
#define ST(g, p) (((g) << 2) | (p))
#define SG(x) ((x) >> 2)
#define SP(x) ((x) & 3)
/* readers: generation, left 2, kept 1, retired 1, bits 5 (readers 0..2; 8 the sidecar's, 16 who Frees) */
#define RD(g, l, k) ((((g) % RGM) << 9) | ((l) << 7) | ((k) << 6))
#define RG(r) ((r) >> 9)
#define RL(r) (((r) >> 7) & 3)
#define RK(r) (((r) >> 6) & 1)
#define RETIRED 32
#define RET(r) (((r) >> 5) & 1)
#define RB(r) ((r) & 31)
#define CANFREE(r) (RL(r) == 0 && !RK(r) && !RB(r))
#define NONE 0
#define QUEUED 1
#define HELD 2
#define DONE 3
#define DW(g, h, p) (((g) << 5) | ((h) << 2) | (p))
#define DG(x) ((x) >> 5)
#define DH(x) (((x) >> 2) & 7)
#define DP(x) ((x) & 3)
#define NCL (1 + NR + NF + NK)
#define ALL ((1 << NCL) - 1)
#define PR ((1 << (1 + NR)) - 1)
#define ADOPTED 7 /* bit in `dead`: what the sidecar before this one held */

short st, rd, dw[NW];
byte dead, swept, fin, deaths, restarts, expiries, newest;
/* Ghosts, sets of generations but nread and body. */
byte nread, body, ended[NG + 1], added[NG + 1];
byte freed, expired, keptg;
#define OVER(t) (((freed | expired) >> (t) & 1) || (!((keptg >> (t)) & 1) && ended[t] >= LEFT + added[t]))

inline crash()
{
    if
    :: me < NCL && deaths < MAXC -> deaths++; dead = dead | (1 << me); if :: inside -> nread-- :: else fi; goto out
    :: me == NCL && restarts < MAXR -> restarts++; goto out
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }

inline scan_words()
{
    k = 0;
    do
    :: k < NW && ok -> R(w = dw[k]); if :: DG(w) == SG(x) && (DP(w) == QUEUED || DP(w) == HELD) -> ok = 0 :: else fi; k++
    :: else -> break
    od
}

/* rs_ring_free_check with rs_ring_readers_are_done */
inline free_check()
{
    R(x = st);
    if
    :: SP(x) == SEALED ->
        ok = 1;
#ifdef WORDSCAN
        scan_words();
#endif
        do
        :: R(r = rd);
            if
            :: RG(r) == SG(x) % RGM && RET(r) && !RB(r) -> break
            :: RG(r) == SG(x) % RGM && !RET(r) && CANFREE(r) ->
                atomic { crash(); if :: rd == r -> rd = r | RETIRED; i = 1 :: else -> i = 0 fi };
                if :: i -> i = 0; break :: else fi
            :: else -> ok = 0; break
            fi
        od;
#ifndef WORDSCAN
        scan_words();
#endif
        if
        :: ok -> atomic { crash(); if :: st == x -> st = ST(SG(x), FREE); assert(nread == 0) :: else fi }
        :: else
        fi
    :: else
    fi;
    x = 0; r = 0; w = 0; k = 0; ok = 0; i = 0
}

/* rs_ring_read_begin; got: the body may be read, own bit b is on */
inline begin(t_)
{
    got = 0; ok = 0;
    do
    :: R(r = rd);
        if
        :: RG(r) != (t_) % RGM || RET(r) -> break
        :: else ->
            atomic { crash(); if :: rd == r -> assert(!(r & b)); rd = r | b; ok = 1 :: else fi };
            if :: ok -> break :: else fi
        fi
    od;
    if
    :: ok ->
        R(x = st);
        if :: x == ST(t_, SEALED) -> got = 1 :: else fi;
        if :: !got -> end_reading(t_, 0, 0) :: else fi
    :: else
    fi;
    ok = 0; r = 0; x = 0
}

/* end_reading; counted: rs_ring_read_end, freeing: rs_ring_ticket_free */
inline end_reading(t_, counted, freeing)
{
    ok = 0;
    do
    :: R(r = rd);
        if
        :: !(r & b) -> assert(!(counted) && !(freeing)); w = 0; break /* a new owner's store wiped it */
        :: else ->
            w = r & (~b);
#ifndef ENDTWO
#ifdef COUNTUNDO
            if :: !(freeing) && RL(r) > 0 -> w = w - 128 :: else fi;
#elif defined(UNDERFLOW)
            if :: counted -> w = w - 128 :: else fi;
#else
            if :: (counted) && RL(r) > 0 -> w = w - 128 :: else fi;
#endif
            if :: freeing -> w = (RG(w) << 9) | RETIRED | RB(w) :: else fi;
#endif
#ifdef UNDOQUIET
            if :: ((counted) || (freeing)) && CANFREE(w) -> w = w | RETIRED :: else fi;
#else
            if :: CANFREE(w) -> w = w | RETIRED :: else fi;
#endif
            atomic {
                crash();
                if
                :: rd == r ->
                    rd = w; ok = 1;
                    if :: counted -> ended[t_]++; inside = 0; nread-- :: else fi;
                    if :: (freeing) && !RET(r) -> freed = freed | (1 << (t_)); assert(st == ST(t_, SEALED)) :: else fi
                :: else
                fi
            };
            if :: ok -> break :: else fi
        fi
    od;
#ifdef ENDTWO
    do
    :: R(r = rd);
        if
        :: RL(r) > 0 && (counted) ->
            w = r - 128;
            if :: CANFREE(w) -> w = w | RETIRED :: else fi;
            atomic { crash(); if :: rd == r -> rd = w; ok = 1 :: else -> ok = 0 fi };
            if :: ok -> break :: else fi
        :: else -> w = r; break
        fi
    od;
#endif
#ifdef UNDOQUIET
    if :: ((counted) || (freeing)) && RET(w) && !RB(w) -> free_check() :: else fi;
#else
    if :: RET(w) && !RB(w) -> free_check() :: else fi;
#endif
    ok = 0; r = 0; w = 0
}

/* rs_ring_readers_add: one more; the word is kept by the own bit */
inline add_reader(t_)
{
    ok = 0;
    do
    :: R(r = rd);
        if
#ifndef ADDLATE
        :: !(r & b) || RET(r) -> assert((r & b) && OVER(t_)); break
#endif
        :: RK(r) || RL(r) == 3 -> break
#ifdef ADDLATE
        :: !RK(r) && RL(r) < 3 ->
#else
        :: (r & b) && !RET(r) && !RK(r) && RL(r) < 3 ->
#endif
#ifdef ADDPLAIN
            R(rd = r + 128; added[t_]++; ok = 1);
#else
            atomic { crash(); if :: rd == r -> rd = r + 128; added[t_]++; ok = 1 :: else fi };
#endif
            if :: ok -> break :: else fi
        fi
    od;
    ok = 0; r = 0
}

/* rs_ring_read_retire: Free by who reads it; the own bit leaves the free check to its end */
inline retire(t_)
{
    ok = 0;
    do
    :: R(r = rd);
        if
#ifndef RETIRELATE
        :: !(r & b) || RET(r) -> assert((r & b) && OVER(t_)); break
        :: (r & b) && !RET(r) ->
#else
        :: RET(r) -> break
        :: !RET(r) ->
#endif
            atomic {
                crash();
                if
                :: rd == r -> rd = (RG(r) << 9) | RETIRED | RB(r); ok = 1; assert(st == ST(t_, SEALED)); freed = freed | (1 << (t_))
                :: else
                fi
            };
            if :: ok -> break :: else fi
        fi
    od;
    ok = 0; r = 0
}

/* rs_ring_ticket_free */
inline free_ticket(t_)
{
#if defined(FREETEXT) || defined(FREECHK)
    ok = 0;
    do
    :: R(r = rd);
        if
        :: RG(r) == (t_) % RGM && !RET(r) ->
#ifdef FREECHK
            R(x = st);
            if :: x != ST(t_, SEALED) -> break :: else fi;
#endif
            atomic {
                crash();
                if
                :: rd == r -> rd = (RG(r) << 9) | RETIRED | RB(r); ok = 1; assert(st == ST(t_, SEALED)); freed = freed | (1 << (t_))
                :: else
                fi
            };
            if :: ok -> break :: else fi
        :: else -> break
        fi
    od;
    x = 0;
    if :: ok -> free_check() :: else fi;
    ok = 0; r = 0
#else
    begin(t_);
    if :: got -> end_reading(t_, 0, 1) :: else fi;
    got = 0
#endif
}

proctype publisher(byte me)
{
    byte n, l;
    short x;
    bit inside;
    do
    :: n < NG ->
        R(x = st);
        if
        :: SP(x) == FREE ->
            atomic {
                crash();
                st = ST(SG(x) + 1, LOANED);
                assert(nread == 0); /* nobody reads what is written now */
                body = SG(st); x = SG(st);
#ifdef KEPT
                if :: l = LEFT :: l = 0; keptg = keptg | (1 << x) fi
#else
                l = LEFT
#endif
            };
#ifdef ROUTED
            R(dw[0] = DW(x, 0, QUEUED));
#else
            R(dw[0] = DW(x, 0, NONE));
#endif
            R(dw[1] = DW(x, 0, NONE));
            R(rd = RD(x, l, (l == 0)));
            atomic { crash(); assert(st == ST(x, LOANED)); st = ST(x, SEALED); newest = x; n++; x = 0; l = 0 }
        :: else -> atomic { (SP(st) == FREE || (fin & (ALL - 1)) == ALL - 1) -> if :: SP(st) != FREE -> n = NG :: else fi }
        fi
    :: else -> break
    od;
out:
    atomic { fin = fin | (1 << me); n = 0; x = 0; l = 0 }
}

proctype reader(byte me)
{
    byte b, t, n, k, i;
    short x, r, w;
    bit ok, got, inside;
    b = 1 << (me - 1);
    do
    :: n < KR ->
        n++;
        if
        :: newest > 0 -> t = newest
        :: newest > 1 -> t = newest - 1
        :: newest > RGM -> t = newest - RGM
        :: newest == 0 && (fin & 1) -> break
        fi;
        begin(t);
        if
        :: got ->
            atomic { crash(); nread++; inside = 1; assert(body == t && st == ST(t, SEALED)) };
#ifdef READQ
            if
            :: R(w = dw[1]);
                if
                :: w == DW(t, 0, NONE) -> atomic { crash(); if :: dw[1] == w -> dw[1] = DW(t, 0, QUEUED) :: else fi }
                :: else
                fi;
                w = 0
            :: skip
            fi;
#endif
#if defined(PASS) && !defined(ADDLATE)
            if :: add_reader(t) :: skip fi;
#endif
#if defined(RETIRE) && !defined(RETIRELATE)
            if :: retire(t) :: skip fi;
#endif
            end_reading(t, 1, 0); got = 0
#ifdef ADDLATE
            ; if :: add_reader(t) :: skip fi
#endif
#ifdef RETIRELATE
            ; if :: retire(t) :: skip fi
#endif
        :: else -> assert(OVER(t)) /* STALE only when it is over */
        fi;
        t = 0
    :: else -> break
    od;
out:
    atomic { fin = fin | (1 << me); n = 0; x = 0; r = 0; t = 0; ok = 0; b = 0; got = 0; inside = 0; w = 0; k = 0; i = 0 }
}

proctype freer(byte me)
{
    byte b, t, k, i;
    short x, r, w;
    bit ok, got, inside;
    b = 16;
    if
    :: newest > 0 -> t = newest
    :: newest > 1 -> t = newest - 1
    :: newest > RGM -> t = newest - RGM
    :: (fin & 1) -> t = 0
    fi;
    if :: t -> free_ticket(t) :: else fi;
out:
    atomic { fin = fin | (1 << me); x = 0; r = 0; t = 0; ok = 0; b = 0; got = 0; w = 0; k = 0; i = 0 }
}

#define WAITS(d_) (SP(st) == SEALED && DP(dw[d_]) == QUEUED)
proctype consumer(byte me)
{
    byte d, k, i;
    short x, r, w;
    bit ok, got, inside;
    do
    :: atomic {
            WAITS(0) || WAITS(1) || (fin & PR) == PR ->
            if
            :: WAITS(0) -> d = 0
            :: WAITS(1) -> d = 1
            :: !(WAITS(0) || WAITS(1)) -> break
            fi
        };
        R(w = dw[d]);
        R(x = st);
        if
        :: DP(w) == QUEUED && x == ST(DG(w), SEALED) ->
            atomic {
                crash();
                if
                :: dw[d] == w -> dw[d] = DW(DG(w), me, HELD); ok = 1; nread++; inside = 1; assert(body == DG(w) && st == x)
                :: else
                fi
            };
            if
            :: ok -> ok = 0; atomic { crash(); dw[d] = DW(DG(w), 0, DONE); nread--; inside = 0 }; free_check()
            :: else
            fi
        :: else
        fi;
        w = 0; x = 0; d = 0
    od;
out:
    atomic { fin = fin | (1 << me); d = 0; x = 0; r = 0; ok = 0; got = 0; w = 0; k = 0; i = 0; inside = 0 }
}

#define TIME_OVER (SP(st) == SEALED && ((expired >> SG(st)) & 1) && !RET(rd))
proctype sidecar(byte me)
{
    byte b, j, t, k, i;
    short x, r, w;
    bit ok, got, inside;
    b = 8;
    goto go;
out: /* adopt: the bit of reader 0 off, before any Free */
    atomic { swept = 0; dead = dead | (1 << ADOPTED); j = 0; t = 0; k = 0; i = 0; x = 0; r = 0; w = 0; ok = 0; got = 0 };
go:
    do
    :: dead & ~swept ->
        atomic { j = 0; do :: !(((dead & ~swept) >> j) & 1) -> j++ :: else -> break od };
        R(x = st);
        if
        :: j == 0 && SP(x) == LOANED -> atomic { crash(); if :: st == x -> st = ST(SG(x), FREE) :: else fi }
        :: else
        fi;
        t = 0;
        do
        :: t < NW -> R(w = dw[t]); if :: DP(w) == HELD && DH(w) == j -> R(dw[t] = DW(DG(w), 0, QUEUED)) :: else fi; t++
        :: else -> break
        od;
        t = (j == ADOPTED -> 8 : (j >= 1 && j <= NR -> (1 << (j - 1)) : (j > NR && j <= NR + NF -> 16 : 0)));
        R(r = rd);
        if :: r & t -> R(rd = rd & (~t)) :: else fi;
        t = 0; r = 0;
#ifndef SWEEPQUIET
        free_check();
#endif
        swept = swept | (1 << j); j = 0
    :: atomic { expiries < MAXE && SP(st) == SEALED && !((expired >> SG(st)) & 1) -> expired = expired | (1 << SG(st)); expiries++ }
    :: atomic { ENDS_BY_TIME && TIME_OVER && !((dead & ~swept) >> ADOPTED) -> crash(); t = SG(st) }; free_ticket(t); t = 0
    :: fin == ALL && !(dead & ~swept) && !(ENDS_BY_TIME && TIME_OVER) -> break
    od;
    atomic { /* all is quiet */
        assert(!RB(rd) || SP(st) != SEALED);
        t = 0;
        do
        :: t < NW -> if :: WAITS(t) && DG(dw[t]) == SG(st) -> dw[t] = DW(SG(st), 0, DONE); ok = 1 :: else fi; t++
        :: else -> break
        od;
        if :: ok -> ok = 0; restarts = MAXR; free_check() :: else fi;
        /* Sealed only while readings are owed, and never after its time. */
        assert(SP(st) == FREE || (SP(st) == SEALED && (RL(rd) > 0 || RK(rd)) && !RET(rd) && RG(rd) == SG(st) % RGM && !((freed >> SG(st)) & 1)));
        assert(SP(st) == FREE || !((expired >> SG(st)) & 1))
    }
}

init
{
    byte j;
    atomic {
        st = ST(0, FREE); rd = RETIRED;
        run publisher(0);
        j = 0; do :: j < NR -> run reader(1 + j); j++ :: else -> break od;
        j = 0; do :: j < NF -> run freer(1 + NR + j); j++ :: else -> break od;
        j = 0; do :: j < NK -> run consumer(1 + NR + NF + j); j++ :: else -> break od;
        run sidecar(NCL);
        j = 0
    }
}

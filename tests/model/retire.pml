/* SPDX-License-Identifier: Apache-2.0 */
/* Why `retired` and the reader bits are one word with a generation of its own (the rest of that word: tickets.pml).
 *
 * A publisher makes NG generations of one slot; NR readers x KR readings of the newest ticket or the one before; NF who Free;
 * MAXC deaths. TWO (wrong): a flag and the bits change on their own: set the bit, then check the flag || set the flag, then
 * check the bits; the next owner clears the flag. UNDO with TWO: a reader that came too late runs the free check as well. */
#ifndef NG
#define NG 2
#endif
#ifndef MAXC
#define MAXC 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NF
#define NF 1
#endif
#ifndef KR
#define KR 1
#endif
#define FREE 0
#define LOANED 1
#define SEALED 2
#define ST(g, o, p) (((g) << 5) | ((o) << 2) | (p))
#define SG(x) ((x) >> 5)
#define SP(x) ((x) & 3)
/* readers: generation, retired 1, bits 2 */
#define RG(r) ((r) >> 4)
#define RET(r) (((r) >> 2) & 1)
#define RB(r) ((r) & 3)
#define NCL 5
#define EVERYBODY 31

byte st, rd, dead, swept, fin, deaths;
byte newest;             /* ticket that was passed on */
byte body, nread, freed; /* ghosts: generation in the body, who reads it, generations for which Free was called */

inline crash()
{
    if
    :: deaths < MAXC && me < NCL -> deaths++; dead = dead | (1 << me); if :: inside -> nread-- :: else fi; goto out
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }

inline free_check()
{
    R(x = st);
    if
    :: SP(x) == SEALED ->
        R(r = rd);
        if
#ifdef TWO
        :: RET(r) && !RB(r) ->
#else
        :: RG(r) == SG(x) && RET(r) && !RB(r) ->
#endif
            atomic { crash(); if :: st == x -> st = ST(SG(x), 0, FREE); assert(nread == 0) :: else fi }
        :: else
        fi
    :: else
    fi;
    x = 0; r = 0
}

proctype publisher(byte me)
{
    byte n, x, r;
    bit inside;
    do
    :: n < NG ->
        R(x = st);
        if
        :: SP(x) == FREE ->
            atomic { crash(); st = ST(SG(x) + 1, 1, LOANED); assert(nread == 0); body = SG(st) };
#ifdef TWO
            R(rd = rd & 3);
#else
            R(rd = (SG(x) + 1) << 4);
#endif
            atomic { crash(); st = ST(SG(x) + 1, 0, SEALED); n++ };
            newest = SG(x) + 1
        :: else -> atomic { (SP(st) == FREE || (fin | dead) >> 1 == 15) -> if :: SP(st) != FREE -> n = NG :: else fi }
        fi
    :: else -> break
    od;
out:
    atomic { fin = fin | 1; n = 0; x = 0; r = 0 }
}

inline swap(value)
{
    atomic { crash(); if :: rd == r -> rd = value; ok = 1 :: else -> ok = 0 fi }
}

proctype reader(byte me)
{
    byte b, t, x, r, n;
    bit ok, inside;
    b = (me == 1 -> 1 : 2);
    do
    :: n < KR ->
        n++;
        if
        :: newest > 0 -> t = newest
        :: newest > 1 -> t = newest - 1
        :: else -> break
        fi;
#ifdef TWO
        R(rd = rd | b);
        R(x = st);
        R(r = rd);
        if
        :: SP(x) == SEALED && SG(x) == t && !RET(r) ->
            atomic { nread++; inside = 1; assert(body == t && SP(st) == SEALED && SG(st) == t) };
            atomic { crash(); inside = 0; nread-- };
            R(rd = rd & (255 - b));
            free_check()
        :: else ->
            if :: SP(x) == SEALED && SG(x) == t && RET(r) -> assert((freed >> t) & 1) :: else fi; /* STALE though nobody freed it */
            R(rd = rd & (255 - b));
#ifdef UNDO
            free_check()
#endif
        fi;
#else
        do
        :: R(r = rd);
            if
            :: RG(r) != t || RET(r) -> break
            :: else -> swap(r | b); if :: ok -> break :: else fi
            fi
        od;
        if
        :: ok ->
            ok = 0;
            R(x = st);
            if
            :: SP(x) == SEALED && SG(x) == t ->
                atomic { nread++; inside = 1; assert(body == t && SP(st) == SEALED && SG(st) == t) };
                atomic { crash(); inside = 0; nread-- }
            :: else
            fi;
            do
            :: R(r = rd); swap(r & (255 - b)); if :: ok -> break :: else fi
            od;
            ok = 0;
            free_check()
        :: else
        fi;
#endif
        x = 0; r = 0; t = 0
    :: else -> break
    od;
out:
    atomic { fin = fin | (1 << me); n = 0; x = 0; r = 0; t = 0; ok = 0; b = 0; inside = 0 }
}

proctype freer(byte me)
{
    byte n, t, x, r;
    bit ok, inside;
    do
    :: n < NG ->
        n++;
        if :: newest > 0 -> t = newest :: else -> (newest > 0 || ((fin | dead) & 1)); t = newest fi;
        if :: t == 0 -> break :: else fi;
        R(x = st);
        if
        :: SP(x) == SEALED && SG(x) == t ->
            freed = freed | (1 << t);
#ifdef TWO
            R(rd = rd | 4);
            R(r = rd);
            if
            :: !RB(r) -> atomic { crash(); if :: st == x -> st = ST(SG(x), 0, FREE); assert(nread == 0) :: else fi }
            :: else
            fi
#else
            do
            :: R(r = rd); if :: RG(r) == t && !RET(r) -> swap(r | 4); if :: ok -> break :: else fi :: else -> break fi
            od;
            ok = 0;
            free_check()
#endif
        :: else
        fi;
        t = 0; x = 0; r = 0
    :: else -> break
    od;
out:
    atomic { fin = fin | (1 << me); n = 0; x = 0; r = 0; t = 0; ok = 0 }
}

proctype sidecar(byte me)
{
    byte i, x, r;
    bit inside;
    do
    :: dead & ~swept ->
        atomic { i = 0; do :: !(((dead & ~swept) >> i) & 1) -> i++ :: else -> break od };
        R(x = st);
        if :: i == 0 && SP(x) == LOANED -> st = ST(SG(x), 0, FREE) :: else fi;
        if :: i == 1 -> atomic { rd = rd & 254 } :: i == 2 -> atomic { rd = rd & 253 } :: else fi;
        free_check();
        swept = swept | (1 << i); i = 0
    :: fin == EVERYBODY && !(dead & ~swept) -> break
    od;
out:
    atomic {
        x = st;
        assert(SP(x) == FREE || (SP(x) == SEALED && !((freed >> SG(x)) & 1)) || ((dead >> 3) && SP(x) == SEALED && !RET(rd)));
        assert(!RB(rd));
        assert(SP(x) != SEALED || !RET(rd) || ((freed >> SG(x)) & 1)) /* retired only what was freed */
    }
}

init
{
    atomic {
        st = ST(0, 0, FREE);
        run publisher(0);
        run reader(1);
#if NR > 1
        run reader(2);
#else
        fin = fin | 4;
#endif
        run freer(3);
#if NF > 1
        run freer(4);
#else
        fin = fin | 16;
#endif
        run sidecar(NCL)
    }
}

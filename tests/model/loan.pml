/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation: recent slots whose bitmap bit stays on, bitmap and summary, the walk; freeing that looks before it sets a bit;
 * producers that sleep on slot_free (proto/loan.c). Nobody sleeps beside a free slot. When all is quiet each free slot has its
 * bits, unless an allocator died: then the audit sets them.
 *
 * NS slots, a bitmap word for each two slots, one summary word. NP producers x NM loans; each remembers the slot that it sealed last.
 * NF consumers that free. MAXC deaths of producers; STOP: they are stopped for ever and live, so that nobody sweeps; then a sleeper
 * looks again after a second.
 * Wrong on purpose: READFIRST the state is read before the bit is cleared; LOOKEARLY who frees looks at the bits before the
 * state is FREE; NOLOOK2 a summary bit is cleared without a second look at its word; HINTED the look before the sleep is at the
 * hints alone (harmless until an allocator is stopped); NOAUDIT no bits are set after a death; ARMLATE the look comes before the arming. */
#ifndef NS
#define NS 2
#endif
#ifndef NP
#define NP 2
#endif
#ifndef NM
#define NM 2
#endif
#ifndef NF
#define NF 1
#endif
#ifndef MAXC
#define MAXC 0
#endif
#define NWORDS ((NS + 1) / 2)
#define FREE 0
#define LOANED 1
#define SEALED 2
#define ST(g, o, p) (((g) << 6) | ((o) << 2) | (p))
#define SG(x) ((x) >> 6)
#define SO(x) (((x) >> 2) & 15)
#define SP(x) ((x) & 3)
#define NCL NP
#define NOTHING 15

short st[NS];
byte bits[NWORDS]; /* two bits each */
byte summary;
byte ww; /* slot_free: sequence, armed */
byte dead, swept, fin, deaths, tick;
byte sleeping; /* ghost */

inline crash()
{
    if
#ifdef STOP
    :: me < NCL && deaths < MAXC -> deaths++; goto out
#else
    :: me < NCL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
#endif
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }

inline wake()
{
    R(u = ww);
    do
    :: u & 1 -> atomic { crash(); if :: ww == u -> ww = (u + 1) & 63; u = 0 :: else -> u = ww fi }
    :: else -> break
    od;
    u = 0
}

/* rs_ring_mark_free: set_bit looks first */
inline mark_free(s_)
{
#ifndef LOOKEARLY
    R(b = bits[(s_) / 2]);
#endif
    if :: !((b >> ((s_) % 2)) & 1) -> R(bits[(s_) / 2] = bits[(s_) / 2] | (1 << ((s_) % 2))) :: else fi;
#ifndef LOOKEARLY
    R(b = summary);
#else
    b = b >> 2;
#endif
    if :: !((b >> ((s_) / 2)) & 1) -> R(summary = summary | (1 << ((s_) / 2))) :: else fi;
    b = 0
}

inline announce_free(s_)
{
    mark_free(s_);
    wake()
}

/* ok: the slot is mine */
inline try_loan(s_)
{
#ifndef READFIRST
    R(x = st[s_]);
#endif
    if
    :: SP(x) == FREE ->
        atomic {
            crash();
            if :: st[s_] == x -> st[s_] = ST((SG(x) + 1) & 15, me + 1, LOANED); s = s_; ok = 1 :: else fi
        }
    :: else
    fi;
    x = 0
}

/* loan_from_bitmap; ok */
inline from_bitmap()
{
    R(sum = summary);
    i = 0;
    do
    :: i < NWORDS && !ok ->
        if
        :: (sum >> i) & 1 ->
            R(b = bits[i]);
            k = 0;
            do
            :: k < 2 && !ok ->
                if
                :: (b >> k) & 1 ->
#ifdef READFIRST
                    R(x = st[i * 2 + k]);
#endif
                    atomic { crash(); a = (bits[i] >> k) & 1; bits[i] = bits[i] & ~(1 << k) };
                    if :: a -> a = 0; try_loan(i * 2 + k) :: else fi
                :: else
                fi;
                k++
            :: else -> break
            od;
            k = 0; b = 0;
            if
            :: !ok ->
                R(summary = summary & ~(1 << i));
#ifndef NOLOOK2
                R(b = bits[i]);
                if :: b -> R(summary = summary | (1 << i)) :: else fi;
#endif
                b = 0
            :: else
            fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; sum = 0; x = 0; a = 0
}

inline walk()
{
    i = 0;
    do
    :: i < NS && !ok ->
#ifdef READFIRST
        R(x = st[i]);
#endif
        try_loan(i);
        i++
    :: else -> break
    od;
    i = 0
}

/* rs_ring_loan_hinted; a small class: the oldest recent slot alone, and a miss leaves it */
inline loan_hinted()
{
    ok = 0;
    if
    :: recent != NOTHING ->
#ifdef READFIRST
        R(x = st[recent]);
#endif
        try_loan(recent); if :: ok -> recent = NOTHING :: else fi
    :: else
    fi;
    if :: !ok -> from_bitmap() :: else fi
}

inline loan_or_arm()
{
    loan_hinted();
#ifdef ARMLATE
    if :: !ok -> walk() :: else fi;
#endif
    if
    :: !ok ->
        atomic { crash(); ww = ww | 1; v = ww };
#ifndef ARMLATE
        loan_hinted(); /* the whole look, after the arming */
#ifndef HINTED
        if :: !ok -> walk() :: else fi;
#endif
#endif
        if
        :: !ok ->
            sleeping = sleeping | (1 << me);
end_sleep:
            atomic { ww != v || ((tick >> me) & 1) -> tick = tick & ~(1 << me); sleeping = sleeping & ~(1 << me) }
        :: else
        fi;
        v = 0
    :: else
    fi
}

proctype producer(byte me)
{
    byte s, j, i, k, a, b, u, v, sum, recent = NOTHING;
    short x;
    bit ok;
    do
    :: j < NM ->
        loan_or_arm();
        if
        :: ok ->
            ok = 0;
            if
            :: atomic { crash(); st[s] = ST(SG(st[s]), 0, SEALED) }; recent = s
            :: atomic { crash(); st[s] = ST(SG(st[s]), 0, FREE) }; recent = s; announce_free(s) /* rs_ring_abandon */
            fi;
            j++; s = 0
        :: else
        fi
    :: else -> break
    od;
out:
    atomic { fin++; s = 0; j = 0; i = 0; k = 0; a = 0; b = 0; u = 0; v = 0; sum = 0; recent = 0; x = 0; ok = 0; sleeping = sleeping & ~(1 << me) }
}

/* A consumer that ends the last delivery: the free check, shortened to its compare-and-swap */
proctype consumer(byte me)
{
    byte s, b, u;
end_idle:
    do
    :: atomic {
            if :: SP(st[0]) == SEALED -> s = 0 :: NS > 1 && SP(st[NS - 1]) == SEALED -> s = NS - 1 :: NS > 2 && SP(st[NS / 2]) == SEALED -> s = NS / 2 fi
        };
#ifdef LOOKEARLY
        b = bits[s / 2] | (summary << 2);
#endif
        atomic { if :: SP(st[s]) == SEALED -> st[s] = ST(SG(st[s]), 0, FREE); u = 1 :: else fi };
        if :: u -> u = 0; announce_free(s) :: else fi;
        s = 0; b = 0
    od;
out:
    skip
}

proctype sidecar(byte me)
{
    byte s, b, u, victim;
    short x;
end_idle:
    do
    :: atomic { dead & ~swept -> victim = 0; do :: !(((dead & ~swept) >> victim) & 1) -> victim++ :: else -> break od };
        s = 0;
        do
        :: s < NS ->
            x = st[s];
            if
            :: SP(x) == LOANED && SO(x) == victim + 1 ->
                atomic { if :: st[s] == x -> st[s] = ST(SG(x), 0, FREE); u = 1 :: else fi };
                if :: u -> u = 0; announce_free(s) :: else fi
            :: else
            fi;
            s++
        :: else -> break
        od;
        s = 0;
#ifndef NOAUDIT
        do
        :: s < NS -> if :: SP(st[s]) == FREE -> mark_free(s) :: else fi; s++
        :: else -> break
        od;
        s = 0;
#endif
        ww = ((ww | 1) + 1) & 63; /* wake all */
        swept = swept | (1 << victim); victim = 0; x = 0
    od;
out:
    skip
}

proctype monitor()
{
    byte s;
#ifdef STOP
    timeout -> tick = sleeping;
#endif
    timeout ->
        atomic {
            do
            :: s < NS ->
                assert(SP(st[s]) != FREE || !sleeping); /* nobody sleeps beside a free slot */
#ifndef STOP
                assert(SP(st[s]) != FREE || (((bits[s / 2] >> (s % 2)) & 1) && ((summary >> (s / 2)) & 1))); /* nor is one hidden */
#endif
                s++
            :: else -> break
            od
        }
}

init
{
    byte j;
    atomic {
        do :: j < NS -> bits[j / 2] = bits[j / 2] | (1 << (j % 2)); j++ :: else -> break od;
        summary = (1 << NWORDS) - 1;
        j = 0; do :: j < NP -> run producer(j); j++ :: else -> break od;
        j = 0; do :: j < NF -> run consumer(NP); j++ :: else -> break od;
        run sidecar(NP); run monitor();
        j = 0
    }
}

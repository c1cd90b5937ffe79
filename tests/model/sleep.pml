/* SPDX-License-Identifier: Apache-2.0 */
/* Consumers that sleep on not_empty while cells and overflow fill: nobody sleeps beside a message that it could take, whatever
 * the inbox's size, whoever dies, whichever rings are mapped. Every slot is one message, used once.
 *
 * N0, N1, N2 messages of rings 0 (the inbox's own), 1 and 2, each ring with a producer; consumer j maps the rings in MAPj (a bit
 * each) and can open those in OPENS. NK consumers; HOG: consumer 0 is busy for ever with its first message. MAXC deaths: of
 * consumers (WHO 1), of producers (WHO 2), of both, of consumers in the walk (WHO 4). Then the sidecar sweeps, audits and wakes; BELL: it also answers the bell.
 * SERIAL: one producer after the other. TICK: a sleeper looks again after a second. EXPIRE n words end, their cells stay.
 * LATER: at last the rings of consumers that had to do without are handed over.
 * Wrong on purpose, besides core.pml's: LASTRING of several unmapped rings the last one is asked for, and no other; NOSWEEPWAKE
 * the sweep wakes nobody; NOAUDIT it does not audit; WAKEONE the waker clears the bit and wakes one. */
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 0
#endif
#ifndef N2
#define N2 0
#endif
#ifndef MAP0
#define MAP0 7
#endif
#ifndef MAP1
#define MAP1 7
#endif
#ifndef OPENS
#define OPENS 0
#endif
#ifndef NK
#define NK 2
#endif
#ifndef NC
#define NC 1
#endif
#ifndef MAXC
#define MAXC 0
#endif
#ifndef WHO
#define WHO 3
#endif
#ifndef EXPIRE
#define EXPIRE 0
#endif
#define NS (N0 + N1 + N2)
#define ND 1
#define NOSLOTS
#define RING(s) ((s) < N0 -> 0 : ((s) < N0 + N1 -> 1 : 2))
#define NRINGS 3
#define NCL (NK + 3)
#define NOBODY 9

byte map[NCL + 1];
byte ww; /* not_empty: sequence, futex armed */
byte asleep; /* ghost: in FUTEX_WAIT, a bit each */
byte woken;  /* WAKEONE: who was woken */
byte turn, tick, dead, swept, busy, deaths, expired;

#define MAPPED(s) ((map[me] >> RING(s)) & 1)
/* note_unmapped: the next after the ring that was asked for last */
#ifdef LASTRING
#define NOTE(s) ur = RING(s)
#else
#define TURN(ring) (((ring) + NRINGS - asked - 1) % NRINGS)
#define NOTE(s) ur = (ur == NOBODY || TURN(RING(s)) < TURN(ur) -> RING(s) : ur)
#endif
#define NUMBER(k, s) ((k) + 1)
#define SWEPT(k, s) ((k) + 1)
#define OWNS(s) 1
#define RINGBIT(s) 1
#define WAKE_EMPTY(ib) wake()
#define WAKE_FULL(ib) skip

#define MORTAL ((me < NK && ((WHO & 1) || ((WHO & 4) && whole))) || (me >= NK && me < NCL && (WHO & 2)))
inline crash()
{
    if
    :: MORTAL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
    :: true
    fi
}

#include "core.pml"

/* rs_wait_wake: a lost compare-and-swap is tried again while somebody is armed */
inline wake()
{
    R(u = ww);
    do
    :: u & 1 ->
        atomic {
            crash();
            if
            :: ww == u ->
                ww = (u + 1) & 63; u = 0;
#ifdef WAKEONE
                if :: asleep & 1 -> woken = woken | 1 :: (asleep >> 1) & 1 -> woken = woken | 2 :: asleep == 0 fi
#endif
            :: else -> u = ww
            fi
        }
    :: else -> break
    od;
    u = 0
}

/* look in client/c/consume.c: takes, and opens rings until one comes that could not be opened before */
inline look()
{
    first = NOBODY; got = 0;
    do
    :: ur = NOBODY;
        take(0);
        if
        :: got -> break
        :: bad -> bad = 0 /* again, 10 ms later */
        :: !got && !bad && um ->
            asked = ur;
            if
            :: ur == first -> break
            :: ur != first && ((OPENS >> ur) & 1) -> map[me] = map[me] | (1 << ur)
            :: ur != first && !((OPENS >> ur) & 1) ->
#ifdef LASTRING
                break
#else
                if :: first == NOBODY -> first = ur :: else fi
#endif
            fi
        :: else -> break
        fi
    od;
    first = 0; ur = 0; um = 0
}

#ifdef WAKEONE
#define AWAKE ((woken >> me) & 1)
#else
#define AWAKE (ww != v)
#endif

proctype consumer(byte me)
{
    LOCALS;
    byte u, v, ur, first, asked;
    bit armed;
    do
    :: look();
        if
        :: got ->
            armed = 0; v = 0;
#ifdef HOG
            if :: me == 0 -> busy = busy | 1; goto done_for :: else fi;
#endif
            release();
            s = 0; d = 0; got = 0; w = 0
        :: !got && !armed -> atomic { crash(); ww = ww | 1; v = ww; armed = 1 }
        :: !got && armed ->
            atomic { if :: ww == v -> asleep = asleep | (1 << me) :: else fi };
end_sleep:
            atomic {
                if
                :: AWAKE || !((asleep >> me) & 1)
                :: (tick >> me) & 1 -> tick = tick & ~(1 << me)
                :: MORTAL && deaths < MAXC -> deaths++; dead = dead | (1 << me); asleep = asleep & ~(1 << me); goto out
                fi;
                asleep = asleep & ~(1 << me); woken = woken & ~(1 << me);
                armed = 0; v = 0
            }
        fi
    od;
done_for:
    skip;
out:
    atomic {
        s = 0; d = 0; h = 0; t = 0; c = 0; k = 0; a = 0; n = 0; f = 0; s2 = 0; d2 = 0; x = 0; w = 0;
        ok = 0; got = 0; um = 0; bad = 0; whole = 0; u = 0; v = 0; ur = 0; first = 0; asked = 0; armed = 0
    }
}

proctype producer(byte me; byte from; byte count)
{
    LOCALS;
    byte u, ur, asked;
#ifdef SERIAL
    turn == me - NK;
#endif
    do
    :: m < count ->
        R(WORD(from + m, 0) = DW(0, 0, 0, 0, QUEUED)); /* the seal */
        push(0, from + m, 0);
        if :: got -> R(bell = 1); got = 0 :: else fi;
        m++
    :: else -> break
    od;
out:
    atomic { turn++; t = 0; c = 0; k = 0; a = 0; n = 0; m = 0; x = 0; w = 0; ok = 0; got = 0; u = 0; ur = 0; asked = 0 }
}

inline wake_all()
{
#ifndef NOSWEEPWAKE
    ww = ((ww | 1) + 1) & 63; woken = asleep
#else
    skip
#endif
}

proctype sidecar(byte me)
{
    LOCALS;
    byte u, ur, asked, victim;
end:
    do
    :: atomic { dead & ~swept -> victim = 0; do :: !(((dead & ~swept) >> victim) & 1) -> victim++ :: else -> break od };
        sweep(victim);
#ifndef NOAUDIT
        audit();
#endif
        wake_all();
        swept = swept | (1 << victim); victim = 0
#ifdef BELL
    :: atomic { bell -> bell = 0 }; audit()
#endif
#if EXPIRE > 0
    :: atomic {
            expired < EXPIRE -> select(s : 0 .. NS - 1);
            if :: DP(WORD(s, 0)) == QUEUED -> WORD(s, 0) = DW(0, 0, 0, DA(WORD(s, 0)), DONE); cons[s] = 1; expired++ :: else fi;
            s = 0
        }
#endif
    od;
out:
    skip
}

/* Consumer k could take message s and is not busy. */
#define COULD(k, s) (!((dead >> (k)) & 1) && !((busy >> (k)) & 1) && (((map[k] | OPENS) >> RING(s)) & 1))

proctype monitor()
{
    byte i;
#ifdef TICK
    timeout -> tick = (1 << NK) - 1;
#endif
#ifdef LATER
    timeout -> atomic { map[0] = 7; map[1] = 7; wake_all() };
#endif
    timeout ->
        atomic {
            do
            :: i < NS -> assert(DP(WORD(i, 0)) != QUEUED || !(COULD(0, i) || (NK > 1 && COULD(1, i)))); i++
            :: else -> break
            od
        }
}

init
{
    byte j;
    atomic {
        do :: j < NS -> content[j] = j; mdest[j] = 1; j++ :: else -> break od;
        map[0] = MAP0; map[1] = MAP1;
        j = 0; do :: j < NK -> run consumer(j); j++ :: else -> break od;
        map[NK] = 1; map[NK + 1] = 2; map[NK + 2] = 4; map[NCL] = 7;
        run producer(NK, 0, N0);
#if N1 > 0 || defined(SERIAL)
        run producer(NK + 1, N0, N1);
#endif
#if N2 > 0
        run producer(NK + 2, N0 + N1, N2);
#endif
        run sidecar(NCL);
        run monitor();
        j = 0
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One wait word with both armed bits (proto/wait.c): sleepers on the futex, pollers of the eventfd, wakers that try a lost
 * compare-and-swap again. A waker may die between its change and its wake, between clearing the bits and the system call.
 *
 * Two kinds of things come: of kind 0 anybody can use one, of kind 1 only futex sleepers can (they wait for something else).
 * NP producers x NM things, NF futex sleepers, NE pollers; HOG: futex sleeper 0 is busy for ever with its first thing. MAXC deaths.
 * Wrong on purpose: NORETRY a lost compare-and-swap is left to whoever won it; WAKEONE one sleeper is woken; NOSWEEPWAKE a death
 * wakes nobody; LOOKFIRST a sleeper looks before it arms; NOCOMPARE the futex
 * does not compare the word. */
#ifndef NP
#define NP 1
#endif
#ifndef NM
#define NM 2
#endif
#ifndef NF
#define NF 2
#endif
#ifndef NE
#define NE 0
#endif
#ifndef MAXC
#define MAXC 0
#endif
#ifndef KINDS
#define KINDS 1
#endif
#define FUTEX 1
#define EVENT 2
#define ARMED 3
#define STEP 4
#define NEXT(w) (((w) + STEP) & 60)
#define NCL (NP + NF + NE)
byte q[2];        /* things of each kind */
byte ww;          /* sequence, event armed, futex armed */
byte asleep, woken; /* in FUTEX_WAIT; to return from it: a bit per sleeper */
byte edge;        /* the eventfd was written since the poller looked, a bit each */
byte dead, swept, deaths, busy;

inline crash()
{
    if
    :: me < NCL && deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }

inline call(bits_)
{
    if :: (bits_) & EVENT -> R(edge = 255) :: else fi;
    if
    :: (bits_) & FUTEX ->
#ifdef WAKEONE
        atomic { crash(); if :: asleep & 1 -> woken = woken | 1 :: asleep & 2 -> woken = woken | 2 :: !(asleep & 3) fi }
#else
        R(woken = asleep)
#endif
    :: else
    fi
}

inline wake()
{
    R(u = ww);
    do
    :: u & ARMED ->
        atomic { crash(); if :: ww == u -> ww = NEXT(u); ok = 1 :: else -> u = ww; ok = 0 fi };
        if
        :: ok -> ok = 0; call(u); break
#ifdef NORETRY
        :: else -> break
#else
        :: else
#endif
        fi
    :: else -> break
    od;
    u = 0; ok = 0
}

proctype producer(byte me)
{
    byte j, u;
    bit ok;
    do
    :: j < NM ->
        if
        :: R(q[0]++)
#if KINDS > 1
        :: R(q[1]++)
#endif
        fi;
        wake();
        j++
    :: else -> break
    od;
out:
    atomic { j = 0; u = 0; ok = 0 }
}

inline take_any()
{
    atomic {
        crash();
        if
        :: q[0] > 0 -> q[0]--; got = 1
#if KINDS > 1
        :: q[1] > 0 -> q[1]--; got = 1
#endif
        :: q[0] == 0 && (KINDS == 1 || q[1] == 0) -> got = 0
        fi
    }
}

proctype sleeper(byte me; byte bit_)
{
    byte v;
    bit got;
    do
    :: take_any();
        if
        :: got ->
#ifdef HOG
            if :: bit_ == 1 -> busy = busy | 1; break :: else fi
#endif
        :: else ->
#ifdef LOOKFIRST
            take_any();
#endif
            atomic { crash(); ww = ww | FUTEX; v = ww };
#ifndef LOOKFIRST
            take_any();
#endif
            if
            :: !got ->
#ifdef NOCOMPARE
                atomic { crash(); asleep = asleep | bit_; got = 1 };
#else
                atomic { crash(); if :: ww == v -> asleep = asleep | bit_; got = 1 :: else fi }; /* FUTEX_WAIT compares and sleeps */
#endif
                if
                :: got ->
end_sleep:
                    atomic {
                        if
                        :: woken & bit_
                        :: deaths < MAXC -> deaths++; dead = dead | (1 << me); asleep = asleep & ~bit_; woken = woken & ~bit_; goto out
                        fi;
                        asleep = asleep & ~bit_; woken = woken & ~bit_
                    }
                :: else
                fi
            :: else
            fi;
            v = 0
        fi;
        got = 0
    od;
out:
    atomic { v = 0; got = 0 }
}

proctype poller(byte me; byte bit_)
{
    bit got;
    do
    :: atomic { crash(); if :: q[0] > 0 -> q[0]--; got = 1 :: else fi };
        if
        :: got -> got = 0
        :: else ->
            R(edge = edge & ~bit_);
            R(ww = ww | EVENT);
            atomic { crash(); if :: q[0] > 0 -> q[0]--; got = 1 :: else fi };
            if
            :: got -> got = 0; R(edge = 255)
            :: else ->
end_poll:
                atomic {
                    if
                    :: edge & bit_
                    :: deaths < MAXC -> deaths++; dead = dead | (1 << me); goto out
                    fi
                }
            fi
        fi
    od;
out:
    got = 0
}

proctype sidecar()
{
end:
    do
    :: atomic {
            dead & ~swept -> swept = dead;
#ifndef NOSWEEPWAKE
            ww = NEXT(ww); woken = asleep; edge = 255 /* rs_wait_wake_all */
#endif
        }
    od
}

#define LIVES(k) (!((dead >> (k)) & 1))
proctype monitor()
{
    timeout ->
        assert(!(q[0] > 0 || (KINDS > 1 && q[1] > 0)) || !((LIVES(NP) && !(busy & 1)) || (NF > 1 && LIVES(NP + 1))));
        assert(q[0] == 0 || NE == 0 || !LIVES(NP + NF))
}

init
{
    byte j;
    atomic {
        do :: j < NP -> run producer(j); j++ :: else -> break od;
        j = 0; do :: j < NF -> run sleeper(NP + j, 1 << j); j++ :: else -> break od;
        j = 0; do :: j < NE -> run poller(NP + NF + j, 1 << j); j++ :: else -> break od;
        run sidecar(); run monitor();
        j = 0
    }
}

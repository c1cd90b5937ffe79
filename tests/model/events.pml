/* SPDX-License-Identifier: Apache-2.0 */
/* Event loops that share the one eventfd of an inbox, one of which is busy or stopped for ever at any step.
 *
 * As coded (client/c/consume.c, proxy/wait.c): nobody reads the eventfd; each loop has an edge of its own (epoll, edge-triggered).
 * A look that found nothing takes off the own edge, arms the event bit, looks again; who then finds a message writes the eventfd.
 * NE loops, NM messages of one producer; MAXS loops are stopped (and stay alive); BUSY: a loop may work on a message for ever.
 * Wrong on purpose: LEVEL the eventfd is read in place of the own edge, and written again after a message was found; LEVELQUIET
 * not even that; ARMFIRST the bit is armed before the edge is taken off; NOARM the second look comes without arming;
 * TICK with LEVEL: every loop also looks once a second, which mends it. */
#ifndef NE
#define NE 2
#endif
#ifndef NM
#define NM 2
#endif
#ifndef MAXS
#define MAXS 0
#endif
#define NCL NE
byte q;
bit armed;        /* event bit of not_empty */
byte edge;        /* own edges, a bit each */
bit level;        /* the eventfd is readable */
byte stopped;     /* for ever, or busy for ever; a bit each */
byte stops, tick;

inline crash()
{
    if
    :: me < NE && stops < MAXS -> stops++; stopped = stopped | (1 << me); goto out
    :: true
    fi
}
#define R(x_) atomic { crash(); x_ }

#define WRITE_EVENT atomic { crash(); edge = 255; level = 1 }
#if defined(LEVEL) || defined(LEVELQUIET)
#define TAKE_OFF R(level = 0)
#define READABLE level
#else
#define TAKE_OFF R(edge = edge & ~(1 << me))
#define READABLE ((edge >> me) & 1)
#endif

inline look()
{
    atomic { crash(); if :: q > 0 -> q--; got = 1 :: else -> got = 0 fi }
}

inline use()
{
#ifdef BUSY
    if
    :: stops == MAXS && !stopped -> stopped = stopped | (1 << me); goto out
    :: skip
    fi;
#endif
    got = 0
}

proctype loop(byte me)
{
    bit got;
    do
    ::  /* the descriptor polls readable: receive with timeout 0 until nothing comes */
        look();
        if
        :: got -> use()
        :: else ->
#ifdef ARMFIRST
            R(armed = 1);
            TAKE_OFF;
#elif defined(NOARM)
            TAKE_OFF;
#else
            TAKE_OFF;
            R(armed = 1);
#endif
            look();
            if
            :: got ->
#ifndef LEVELQUIET
                WRITE_EVENT;
#endif
                use()
            :: else ->
end_poll:
                atomic {
                    if
                    :: READABLE
                    :: (tick >> me) & 1 -> tick = tick & ~(1 << me)
                    fi
                }
            fi
        fi
    od;
out:
    got = 0
}

proctype producer(byte me)
{
    byte j;
    bit mine;
    do
    :: j < NM ->
        q++;
        atomic { mine = armed; armed = 0 }; /* rs_wait_wake */
        if :: mine -> WRITE_EVENT :: else fi;
        mine = 0; j++
    :: else -> break
    od;
out:
    j = 0
}

proctype monitor()
{
#ifdef TICK
    timeout -> tick = (1 << NE) - 1;
#endif
    timeout -> assert(q == 0 || (stopped & ((1 << NE) - 1)) == (1 << NE) - 1)
}

init
{
    byte j;
    atomic {
        do :: j < NE -> run loop(j); j++ :: else -> break od;
        run producer(NE); run monitor();
        j = 0
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pairs of proto/README.md section 6 with store buffers (TSO: a plain store waits in the buffer, a won read-modify-write
 * empties the buffer and acts at once) and, as on ARMv8 without the right instruction, loads that overtake the store half of
 * the read-modify-write before them. All other models are sequentially consistent.
 *
 * PAIR 1 (a, e, f, g) a change that is waited for: it -> wait word || armed -> look
 *      2 (b) cell cleared -> delivery word || word QUEUED -> scan of the cells
 *      3 (b) the same, sealed by a dead producer: the audit only reads
 *      4 (c, d) DONE -> the other word || the same
 *      5 (f) the head, which follows the cell -> wait word || armed -> head
 *      6 (g) overflow set already: seal -> set again, a new value || overflow -> walk -> cleared if the value is the same
 *      7 (bitmap) bit off -> state || FREE -> look at the bit, set when off
 *      8 a failed compare-and-swap between a plain store and a load (WON: it is won)
 *      9 (f) who clears the cell loses the race for the head || armed -> head; whoever moves the head wakes
 * Wrong on purpose: WP, WQ a plain store on that side; LP, LQ its load overtakes; PAIR 5: EARLY the wait word is read before the
 * head is moved; PAIR 6: SETONCE who finds it set leaves it
 * (LP: set before the seal; LQ: walked before overflow is read); PAIR 7: LOADFIRST the state is read first, LOOKFIRST the bit is
 * looked at first; PAIR 9: QUIET who moves the head for another does not wake. */
bit bp, bq, fp, fq; /* a store waits in P's, in Q's buffer; finished */
byte X, Y, H, Z, asleep, freed, taken;
#define RMWP(s) atomic { !bp; s }
#define RMWQ(s) atomic { !bq; s }

#if PAIR == 2 || PAIR == 3
#define SP X = 0 /* the cell */
#define SQ Y = 1 /* the word QUEUED; 3: the seal */
#elif PAIR == 4
#define SP X = 1
#define SQ Y = 1
#elif PAIR == 5
#define SP H = 1
#define SQ Y = Y | 1
#elif PAIR == 6
#define SP X = 1 /* state SEALED */
#define SQ skip
#elif PAIR == 7
#define SP X = 0 /* the bit */
#define SQ Y = 1 /* state FREE */
#else
#define SP X = 1
#define SQ Y = Y | 1
#endif
#if defined(WP) || PAIR == 8
#define DOP bp = 1
#else
#define DOP RMWP(SP)
#endif
#ifdef WQ
#define DOQ bq = 1
#else
#define DOQ RMWQ(SQ)
#endif
#ifdef LP
#define SIDEP(load) if :: DOP; load :: load; DOP fi
#else
#define SIDEP(load) DOP; load
#endif
#ifdef LQ
#define SIDEQ(load) if :: DOQ; load :: load; DOQ fi
#else
#define SIDEQ(load) DOQ; load
#endif

proctype drain()
{
end:
    do
    :: atomic { bp -> SP; bp = 0 }
    :: atomic { bq -> SQ; bq = 0 }
    od
}

proctype P()
{
    byte a;
#if PAIR == 1
    SIDEP(a = Y);
    if :: a & 1 -> RMWP(Y = 2) :: else fi
#elif PAIR == 5
#ifdef EARLY
    a = Y; DOP;
#else
    SIDEP(a = Y);
#endif
    if :: a & 1 -> RMWP(Y = 2) :: else fi
#elif PAIR == 2 || PAIR == 3
    SIDEP(a = Y);
    if :: a == 1 -> RMWP(if :: Y == 1 -> Y = 2; taken++ :: else fi) :: else fi
#elif PAIR == 4
    SIDEP(a = Y);
    if :: a == 1 -> RMWP(if :: freed == 0 -> freed = 1 :: else fi) :: else fi
#elif PAIR == 6
#ifdef SETONCE
    SIDEP(a = Y); if :: a & 1 :: else -> RMWP(Y = (Y + 2) | 1) fi
#else
    SIDEP(RMWP(Y = (Y + 2) | 1))
#endif
#elif PAIR == 7
#ifdef LOADFIRST
    a = Y; DOP;
#else
    SIDEP(a = Y);
#endif
    if :: a == 1 -> RMWP(if :: Y == 1 -> Y = 2; taken++ :: else fi) :: else fi
#elif PAIR == 8
    DOP;
#ifdef WON
    RMWP(Z = 1);
#else
    a = Z; /* the compare-and-swap failed: a load and no more */
#endif
    a = Y;
    if :: a & 1 -> RMWP(Y = 2) :: else fi
#elif PAIR == 9
    /* the cell is cleared; the head was moved by R meanwhile, so the compare-and-swap fails */
    DOP;
    atomic { !bp; if :: H == 0 -> H = 1; a = 1 :: else -> a = 0 fi };
    a = Y;
#ifdef QUIET
    a = 0;
#endif
    if :: a & 1 -> RMWP(Y = 2) :: else fi
#endif
    ;
    fp = 1
}

#if PAIR == 9
/* another consumer at the same cell */
proctype R()
{
    byte a;
    X == 1;
    atomic { if :: H == 0 -> H = 1 :: else fi };
#ifndef QUIET
    a = Y;
    if :: a & 1 -> atomic { Y = 2 } :: else fi
#endif
}
#endif

proctype Q()
{
    byte a, v;
#if PAIR == 1 || PAIR == 8
    SIDEQ(a = X);
    if :: a == 0 -> asleep = 1; (Y & 2); asleep = 0 :: else fi
#elif PAIR == 5 || PAIR == 9
    SIDEQ(a = H);
    if :: a == 0 -> asleep = 1; (Y & 2); asleep = 0 :: else fi
#elif PAIR == 2
    SIDEQ(a = X);
    if :: a == 0 -> RMWQ(X = 2) :: else fi /* push its cell */
#elif PAIR == 3
    DOQ
#elif PAIR == 4
    SIDEQ(a = X);
    if :: a == 1 -> RMWQ(if :: freed == 0 -> freed = 1 :: else fi) :: else fi
#elif PAIR == 6
#ifdef LQ
    a = X; v = Y;
#else
    v = Y; a = X;
#endif
    if :: a == 1 -> taken = 1 :: else -> RMWQ(if :: Y == v -> Y = Y - 1 :: else fi) fi
#elif PAIR == 7
#ifdef LOOKFIRST
    a = X; DOQ;
#else
    SIDEQ(a = X);
#endif
    if :: a == 0 -> RMWQ(X = 1) :: else fi
#endif
    ;
    fq = 1
}

#if PAIR == 3
proctype audit()
{
    byte a, b;
#ifdef LQ
    b = X; Y != 0; a = Y;
#else
    Y != 0; a = Y; b = X;
#endif
    if :: a == 1 && b == 0 -> atomic { X = 2 } :: else fi
}
#endif

proctype monitor()
{
    timeout ->
#if PAIR == 1 || PAIR == 8
        assert(!(asleep && X == 1))
#elif PAIR == 5 || PAIR == 9
        assert(!(asleep && H == 1))
#elif PAIR == 2 || PAIR == 3
        assert(taken == 1 || X != 0) /* somebody took it, or a cell names it */
#elif PAIR == 4
        assert(freed == 1)
#elif PAIR == 6
        assert(taken || (Y & 1))
#elif PAIR == 7
        assert(taken || X == 1)
#endif
}

init
{
    atomic {
#if PAIR == 2 || PAIR == 3
        X = 1;
#elif PAIR == 6
        Y = 1;
#elif PAIR == 7
        X = 1; /* on, though the slot is in use */
#endif
        run P(); run Q(); run drain(); run monitor();
#if PAIR == 3
        run audit()
#elif PAIR == 9
        run R()
#endif
    }
}

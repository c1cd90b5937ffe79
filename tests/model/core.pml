/* SPDX-License-Identifier: Apache-2.0 */
/* The steps on slots, delivery words, cells and hints, one shared access at a time, as proto/ring.c, inbox.c and repair.c
 * take them. deliver.pml, peers.pml and sleep.pml include this file and bring the processes.
 *
 * A process may be delayed for ever before any access; it may die there when crash() of its model says so. Memory is
 * sequentially consistent here (dekker.pml has store buffers). Each R() is one access.
 *
 * The model that includes it defines: MAPPED(s), ring of slot s judgeable by `me`; NUMBER(k,s), client k's number in that
 * ring; crash(); WAKE_EMPTY(ib), WAKE_FULL(ib), wait words. Its processes have the variables of LOCALS and a label `out`.
 *
 * NOSLOTS: slots are never used again and always sealed; only words, cells and hints live. Then content[s] is s.
 *
 * Sizes: NS slots, ND words each, NW of them in use, NC cells per inbox, NI inboxes. GM, LM: generations and laps are counted
 * modulo these. P0: position at which head and tail start, a multiple of NC.
 *
 * Wrong on purpose (each must be found): NORECHK no second look after a clear; NODEST the word's destination is not compared;
 * NOSTATE take without a look at the state; DESC the free check scans downwards; TAILFAR, HEADFAR the catch-up goes a lap
 * too far; NOLAP a producer fills any empty cell; UNSIGNED laps are compared as plain numbers; PASSES 1: who is behind gives up;
 * CLEARUNJUDGED cells of unmapped rings are cleared; CLEARALL overflow is cleared although a ring could not be walked;
 * EMPTYONLY no walk when the cells ended with those of unmapped rings; EXCHANGE overflow is cleared before the walk; FORGETSET
 * who finds overflow set already does not set it again; NOCELLS rebuilding the hints leaves cells that no head will reach;
 * OLDLOOK only the cells at head and tail are looked at. */
#ifndef NS
#define NS 2
#endif
#ifndef ND
#define ND 2
#endif
#ifndef NW
#define NW 1
#endif
#ifndef NC
#define NC 2
#endif
#ifndef NI
#define NI 1
#endif
#ifndef GM
#define GM 16
#endif
#ifndef LM
#define LM 16
#endif
#ifndef P0
#define P0 0
#endif
#ifndef LIMIT
#define LIMIT 3 /* deliveries until a message is dead-lettered */
#endif
#ifndef PASSES
#define PASSES 4 /* 16 in the code */
#endif
#ifndef KNOWN
#define KNOWN(s) 1 /* the table of the inbox knows the ring of slot s */
#endif

#define FREE 0
#define LOANED 1
#define SEALED 2
#define NONE 0
#define QUEUED 1
#define HELD 2
#define DONE 3
/* state: generation, owner 4, phase 2 */
#define ST(g, o, p) (((g) << 6) | ((o) << 2) | (p))
#define SG(x) ((x) >> 6)
#define SO(x) (((x) >> 2) & 15)
#define SP(x) ((x) & 3)
/* delivery: generation, holder 4, destination 1, attempts 2, phase 2 */
#define DW(g, h, t, a, p) (((g) << 9) | ((h) << 5) | ((t) << 4) | ((a) << 2) | (p))
#define DG(x) ((x) >> 9)
#define DH(x) (((x) >> 5) & 15)
#define DT(x) (((x) >> 4) & 1)
#define DA(x) (((x) >> 2) & 3)
#define DP(x) ((x) & 3)
/* cell: full 1, lap 4, slot 3, delivery 1 */
#define CE(f, l, s, d) (((f) << 8) | ((l) << 4) | ((s) << 1) | (d))
#define CF(c) ((c) >> 8)
#define CL(c) (((c) >> 4) & 15)
#define CS(c) (((c) >> 1) & 7)
#define CD(c) ((c) & 1)
#define LAP(t) (((t) / NC) % LM)
/* How many laps cell c is ahead of position t. */
#ifdef UNSIGNED
#define AHEAD(c, t) (CL(c) - LAP(t))
#else
#define AHEAD(c, t) ((((CL(c) - LAP(t) + LM) % LM) + LM / 2) % LM - LM / 2)
#endif
#define CELL(ib, t) cell[(ib) * NC + (t) % NC]
#define WORD(s, d) dw[(s) * ND + (d)]

short st[NS];
short dw[NS * ND];
short cell[NI * NC];
byte head[NI], tail[NI];
byte ov[NI]; /* overflow: sequence 4, set 1 */
byte bell;   /* a bit per ring */
/* Ghosts: what nobody can see. */
byte content[NS];     /* message in the slot's body */
bit wr[NS];           /* somebody may write the body */
byte rd[NS];          /* who may read it */
byte mdest[8];        /* inboxes that message m is meant for */
byte cons[8];         /* inboxes at which it is over */
byte dl[16];          /* deliveries of m at inbox ib that stand */
byte committed, nmsg; /* sealed, a bit per message */
byte filled[NI];      /* cells filled since the start */
bit quiet;            /* all is over: the last drain */
bit hostile;          /* hints were set to nonsense: order is lost */

#define LOCALS                                                                                                          \
    byte s, d, h, t, k, a, n, q, qt, f, s2, d2, ib, i, m, r, p, pass;                                                   \
    short c, x, w;                                                                                                      \
    bit ok, got, um, bad, whole

#define R(x_) atomic { crash(); x_ }

#ifdef NODEST
#define FOR(w_, ib_) 1
#else
#define FOR(w_, ib_) (DT(w_) == (ib_))
#endif
#if defined(NOSTATE) || defined(NOSLOTS)
#define SEAL_OF(w_, x_) 1
#else
#define SEAL_OF(w_, x_) (SP(x_) == SEALED && SG(x_) == DG(w_))
#endif
#define TAKEABLE(w_, x_, ib_) (DP(w_) == QUEUED && FOR(w_, ib_) && SEAL_OF(w_, x_))

/* rs_ring_takeable: the word first, the state only when the word is of interest; ok */
inline takeable(s_, d_, ib_)
{
    R(w = WORD(s_, d_));
    if
    :: DP(w) == QUEUED && FOR(w, ib_) ->
#ifndef NOSLOTS
        R(x = st[s_]);
#endif
        ok = SEAL_OF(w, x)
    :: else -> ok = 0
    fi
}

#ifdef NOSLOTS
inline free_check(s_)
{
    f = 0
}
#else
inline free_check(s_)
{
    f = 0;
    R(x = st[s_]);
    if
    :: SP(x) == SEALED ->
        k = 0; ok = 1;
        do
        :: k < NW && ok ->
#ifdef DESC
            R(w = WORD(s_, NW - 1 - k));
#else
            R(w = WORD(s_, k));
#endif
            if :: DG(w) == SG(x) && (DP(w) == QUEUED || DP(w) == HELD) -> ok = 0 :: else fi;
            k++
        :: else -> break
        od;
        if
        :: ok -> atomic { crash(); if :: st[s_] == x -> st[s_] = ST(SG(x), 0, FREE); f = 1; assert(rd[s_] == 0) :: else fi }
        :: else
        fi
    :: else
    fi;
    x = 0; w = 0; k = 0; ok = 0
}
#endif

/* ok: this call cleared it */
inline clear_cell(ib_, t_)
{
    atomic { crash(); if :: CELL(ib_, t_) == c -> CELL(ib_, t_) = CE(0, (CL(c) + 1) % LM, 0, 0); ok = 1 :: else -> ok = 0 fi }
}

inline help_head(ib_, from, to)
{
    atomic { crash(); if :: head[ib_] == from -> head[ib_] = to :: else fi };
    WAKE_FULL(ib_)
}

inline overflow(ib_)
{
#ifdef FORGETSET
    R(k = ov[ib_]);
    if :: k & 1 :: else -> R(ov[ib_] = ((ov[ib_] + 2) & 30) | 1) fi;
    k = 0;
#else
    R(ov[ib_] = ((ov[ib_] + 2) & 30) | 1);
#endif
    WAKE_EMPTY(ib_)
}

/* rs_inbox_push. got: the caller must ring the bell of the message's ring. */
inline push(ib_, s_, d_)
{
    n = 0; got = 0;
    do
    :: n == NC + 2 -> got = 1; break
    :: n < NC + 2 ->
        n++;
        R(t = tail[ib_]);
        R(c = CELL(ib_, t));
        if
#ifdef NOLAP
        :: !CF(c) ->
#else
        :: AHEAD(c, t) == 0 && !CF(c) ->
#endif
            atomic {
                crash();
                if
                :: CELL(ib_, t) == c ->
                    /* Positions are filled in order, whatever the hints did. */
                    assert(hostile || t == P0 + filled[ib_]);
                    filled[ib_]++;
                    CELL(ib_, t) = CE(1, LAP(t), s_, d_); ok = 1
                :: else -> ok = 0
                fi
            };
            if
            :: ok -> R(tail[ib_] = t + 1); WAKE_EMPTY(ib_); break
            :: else
            fi
#ifndef NOLAP
        :: AHEAD(c, t) > 0 || (AHEAD(c, t) == 0 && CF(c)) ->
#ifdef TAILFAR
            a = t + AHEAD(c, t) * NC + 1;
#else
            a = t + (AHEAD(c, t) - 1 + CF(c)) * NC + 1;
#endif
            atomic { crash(); if :: tail[ib_] == t -> tail[ib_] = a :: else fi }
        :: AHEAD(c, t) == -1 && CF(c) ->
#else
        :: CF(c) ->
#endif
            /* clear_stale */
            if :: MAPPED(CS(c)) -> takeable(CS(c), CD(c), ib_) :: else -> ok = 1 fi;
            if
            :: ok -> got = 1; break
            :: else ->
                clear_cell(ib_, t);
                if :: ok -> help_head(ib_, t - NC, t - NC + 1) :: else fi;
#ifndef NORECHK
                takeable(CS(c), CD(c), ib_);
                if :: ok -> overflow(ib_) :: else fi
#endif
            fi
#ifndef NOLAP
        :: else -> assert(hostile); got = 1; break
#endif
        fi
    od;
    if :: got -> overflow(ib_) :: else fi;
    t = 0; c = 0; w = 0; x = 0; ok = 0; n = 0; a = 0
}

inline ghost_take(s_, d_, ib_)
{
#ifndef NOSLOTS
    assert(!wr[s_]);                                       /* nobody writes what I read */
    assert(SP(st[s_]) == SEALED && SG(st[s_]) == DG(w));   /* sealed in this generation */
#endif
    assert(mdest[content[s_]] & (1 << (ib_)));             /* meant for my stage */
    dl[content[s_] * 2 + (ib_)]++;
    assert(dl[content[s_] * 2 + (ib_)] == 1);              /* not delivered twice */
    rd[s_]++
}

/* take_cell: got */
inline take_word(s_, d_, ib_)
{
    takeable(s_, d_, ib_);
    if
    :: ok ->
        atomic {
            crash();
            if
            :: WORD(s_, d_) == w ->
                WORD(s_, d_) = DW(DG(w), NUMBER(me, s_), DT(w), DA(w), HELD);
                got = 1; s = s_; d = d_;
                ghost_take(s_, d_, ib_)
            :: else
            fi
        }
    :: else
    fi
}

/* take_from: one pass from head p as loaded */
inline take_pass(ib_)
{
    n = 0; bad = 0; h = p;
    do
    :: n == NC + 2 -> bad = !um; break
    :: n < NC + 2 ->
        n++;
        R(c = CELL(ib_, h));
        if
        :: AHEAD(c, h) == 0 && !CF(c) -> break
        :: AHEAD(c, h) > 0 ->
#ifdef HEADFAR
            a = h + (AHEAD(c, h) - 1) * NC + 1;
#else
            a = h + (AHEAD(c, h) > 2 -> AHEAD(c, h) - 2 : 0) * NC + 1;
#endif
            help_head(ib_, h, a);
            R(h = head[ib_]);
            if :: h < a -> h = a :: else fi
        :: AHEAD(c, h) < 0 -> bad = !um; break
        :: AHEAD(c, h) == 0 && CF(c) ->
            s2 = CS(c); d2 = CD(c);
            if
            :: MAPPED(s2) ->
                take_word(s2, d2, ib_);
                clear_cell(ib_, h);
                help_head(ib_, h, h + 1);
#ifndef NORECHK
                if :: !got -> take_word(s2, d2, ib_) :: else fi;
#endif
                if :: got -> break :: else fi;
                h++
            :: else ->
                um = 1;
                NOTE(s2);
#ifdef CLEARUNJUDGED
                clear_cell(ib_, h);
                help_head(ib_, h, h + 1);
#endif
                h++
            fi
        fi
    od;
    h = 0; c = 0; n = 0; a = 0; s2 = 0; d2 = 0
}

/* rs_inbox_take. got: (s, d) is held. um: a cell or a known ring could not be judged. bad: INTERNAL. */
inline take(ib_)
{
    got = 0; um = 0; pass = 0;
    do
    :: pass == PASSES -> break
    :: pass < PASSES ->
        pass++;
        R(p = head[ib_]);
        take_pass(ib_);
        if
        :: got || !bad -> break
        :: else -> R(a = head[ib_]); if :: a == p -> break :: else fi /* while others take, all is well */
        fi
    od;
    p = 0; pass = 0; a = 0;
#ifdef EMPTYONLY
    if :: !got && !um -> walk(ib_) :: else fi;
#else
    if :: !got -> walk(ib_) :: else fi;
#endif
    a = 0; x = 0; w = 0; s2 = 0; d2 = 0; ok = 0;
    if :: !got -> s = 0; d = 0 :: else -> bad = 0 fi
}

/* take_overflowed */
inline walk(ib_)
{
    R(a = ov[ib_]);
    if
    :: a & 1 ->
        whole = 1; s2 = 0;
#ifdef EXCHANGE
        atomic { crash(); if :: ov[ib_] == a -> ov[ib_] = a & 30 :: else fi };
#endif
        do
        :: s2 < NS && !got ->
            if
            :: MAPPED(s2) ->
#ifndef NOSLOTS
                R(x = st[s2]);
#else
                x = SEALED;
#endif
                if
                :: SP(x) == SEALED ->
                    d2 = 0;
                    do
                    :: d2 < NW && !got -> take_word(s2, d2, ib_); d2++
                    :: else -> break
                    od
                :: else
                fi
            :: !MAPPED(s2) && KNOWN(s2) -> whole = 0; um = 1; NOTE(s2)
            :: else
            fi;
            s2++
        :: else -> break
        od;
#ifdef CLEARALL
        whole = 1;
#endif
        if
        :: !got && whole -> atomic { crash(); if :: ov[ib_] == a -> ov[ib_] = a & 30 :: else fi }
        :: else
        fi;
        whole = 0
    :: else
    fi
}

inline release()
{
    atomic {
        crash();
        w = WORD(s, d);
        assert(DP(w) == HELD && DH(w) == NUMBER(me, s));
        WORD(s, d) = DW(DG(w), 0, DT(w), DA(w), DONE);
        rd[s]--;
        cons[content[s]] = cons[content[s]] | (1 << DT(w))
    };
    free_check(s)
}

/* rs_ring_nack, and the push of the cell unless it was the last attempt */
inline nack(ib_)
{
    atomic {
        crash();
        w = WORD(s, d);
        assert(DP(w) == HELD && DH(w) == NUMBER(me, s));
        rd[s]--;
        ok = DA(w) + 1 < LIMIT;
        WORD(s, d) = DW(DG(w), 0, DT(w), DA(w) + 1, (ok -> QUEUED : DONE));
        if
        :: ok -> dl[content[s] * 2 + DT(w)]--
        :: else -> cons[content[s]] = cons[content[s]] | (1 << DT(w)) /* dead-lettered, counted */
        fi
    };
    if
    :: ok -> push(ib_, s, d); if :: got -> R(bell = bell | RINGBIT(s)) :: else fi
    :: else -> free_check(s)
    fi
}

/* ---- repair.c ---- */

/* rs_repair_sweep of client k_ (a process number) in the slots that the sidecar owns */
inline sweep(k_)
{
    s = 0;
    do
    :: s < NS ->
        if
        :: OWNS(s) ->
            R(x = st[s]);
            if
            :: SP(x) == LOANED && SO(x) == SWEPT(k_, s) ->
                atomic { crash(); if :: st[s] == x -> wr[s] = 0; st[s] = ST(SG(x), 0, FREE) :: else fi }
            :: else ->
                d = 0;
                do
                :: d < NW ->
                    R(w = WORD(s, d));
                    if
                    :: DP(w) == HELD && DH(w) == SWEPT(k_, s) ->
                        ok = DA(w) + 1 < LIMIT;
                        atomic {
                            crash();
                            if
                            :: WORD(s, d) == w ->
                                WORD(s, d) = DW(DG(w), 0, DT(w), DA(w) + 1, (ok -> QUEUED : DONE));
                                rd[s]--;
                                if
                                :: ok -> dl[content[s] * 2 + DT(w)]--
                                :: else -> cons[content[s]] = cons[content[s]] | (1 << DT(w))
                                fi
                            :: else
                            fi
                        }
                    :: else
                    fi;
                    d++
                :: else -> break
                od;
                d = 0;
                free_check(s)
            fi
        :: else
        fi;
        s++
    :: else -> break
    od;
    s = 0; x = 0; w = 0; ok = 0; f = 0
}

#define NAMED(b_, ib_) (((qt >> (b_)) & 1) == (ib_))
/* Which of the collected words have a cell in inbox ib_: f */
inline find_cells(ib_)
{
    h = 0;
    do
    :: h < NC ->
        R(c = cell[(ib_) * NC + h]);
        if :: CF(c) && NAMED(CS(c) * ND + CD(c), ib_) -> f = f | (1 << (CS(c) * ND + CD(c))) :: else fi;
        h++
    :: else -> break
    od;
    h = 0; c = 0
}

/* rs_repair_audit, one slice: words of all slots first, then the cells, then what has none is pushed. */
inline audit()
{
    s = 0; q = 0; qt = 0; f = 0;
    do
    :: s < NS ->
        if
        :: OWNS(s) ->
            free_check(s);
            d = 0;
            do
            :: d < NW && !f ->
                R(w = WORD(s, d)); k = DT(w);
                takeable(s, d, k);
                if :: ok -> q = q | (1 << (s * ND + d)); qt = qt | (k << (s * ND + d)) :: else fi;
                d++
            :: else -> break
            od;
            d = 0; k = 0; f = 0
        :: else
        fi;
        s++
    :: else -> break
    od;
    w = 0; x = 0; ok = 0; s = 0;
    i = 0; m = 0; /* m: inboxes searched */
    do
    :: i < NS * ND ->
        if
        :: (q >> i) & 1 ->
            ib = (qt >> i) & 1;
            if :: !((m >> ib) & 1) -> m = m | (1 << ib); find_cells(ib) :: else fi;
            if :: !((f >> i) & 1) -> push(ib, i / ND, i % ND) :: else fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; q = 0; qt = 0; f = 0; ib = 0; m = 0; got = 0
}

#ifdef MEND
/* How far beyond the head as loaded, h, the position is that cell c of index i stands for */
#define DISTANCE(i_) (h / NC * NC + (i_) - h + AHEAD(c, h / NC * NC + (i_)) * NC)
#define OUT_OF_TURN(at) ((at) >= x && (CF(c) || (at) - x >= NC))

/* x: the lowest position that is not filled, from the head on */
inline true_tail(ib_)
{
    x = 99; i = 0;
    do
    :: i < NC ->
        R(c = cell[(ib_) * NC + i]);
        w = DISTANCE(i) + CF(c) * NC;
        if :: w < x -> x = w :: else fi;
        i++
    :: else -> break
    od;
    i = 0; w = 0
}

inline mend_cells(ib_)
{
    true_tail(ib_);
    got = 0;
    do
    :: i < NC ->
        R(c = cell[(ib_) * NC + i]);
        if
        :: OUT_OF_TURN(DISTANCE(i)) ->
            a = h + x;
            a = a + (i + NC - a % NC) % NC;
            atomic {
                crash();
                if
                :: cell[(ib_) * NC + i] == c -> cell[(ib_) * NC + i] = CE(0, LAP(a), 0, 0); got = got | CF(c)
                :: else
                fi
            }
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; a = 0;
    if :: got -> overflow(ib_) :: else fi
}

inline rebuild(ib_)
{
    R(h = head[ib_]);
    R(t = tail[ib_]);
#ifndef NOCELLS
    mend_cells(ib_);
#endif
    true_tail(ib_);
    w = x;
    do
    :: i < NC -> R(c = cell[(ib_) * NC + i]); if :: CF(c) && DISTANCE(i) < w -> w = DISTANCE(i) :: else fi; i++
    :: else -> break
    od;
    atomic { crash(); if :: head[ib_] == h -> head[ib_] = h + w :: else fi };
    atomic { crash(); if :: tail[ib_] == t -> tail[ib_] = h + x :: else fi };
    h = 0; t = 0; c = 0; a = 0; k = 0; i = 0; got = 0; ok = 0; x = 0; w = 0
}

/* rs_inbox_mend_hints, and the wake that rs_repair_hints adds. Without a hostile hint it must find nothing.
 * ok: nothing contradicts the hints; k: something is beyond the true tail. */
inline mend_hints(ib_)
{
    R(h = head[ib_]);
    R(t = tail[ib_]);
    R(c = CELL(ib_, t));
    ok = AHEAD(c, t) >= -CF(c);
#ifdef OLDLOOK
    R(c = CELL(ib_, h)); ok = ok && AHEAD(c, h) >= 0;
    k = 0;
#else
    true_tail(ib_);
    k = x < 0 || t - h > x;
    do
    :: i < NC ->
        R(c = cell[(ib_) * NC + i]);
        ok = ok && !(CF(c) && DISTANCE(i) < 0);
        k = k || OUT_OF_TURN(DISTANCE(i));
        i++
    :: else -> break
    od;
    if
    :: ok && k -> R(c = CELL(ib_, h + x)); ok = AHEAD(c, h + x) != -CF(c) /* is_unfilled */
    :: else
    fi;
#endif
    h = 0; t = 0; c = 0; k = 0; i = 0; x = 0;
    if
    :: ok -> ok = 0
    :: else -> assert(hostile); rebuild(ib_); WAKE_EMPTY(ib_); WAKE_FULL(ib_)
    fi
}
#endif

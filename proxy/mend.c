/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of repair between turns of the loop, so that no call waits for a large ring. */
#include "proxy/mend.h"

#include <errno.h>
#include <stdlib.h>
#include <uv.h>

#include "proto/failpoint.h"
#include "proxy/proxy.h"
#include "proxy/session.h"

#define SLICE_NS     500000 /* per turn of the loop */
#define SLICE_SLOTS  64     /* between two looks at the clock */
#define AUDIT_GAP_NS INT64_C(20000000)

enum stage { RESTING, SWEEPING, AUDITING };

struct mend {
    struct proxy *proxy;
    uv_idle_t idle;   /* active while there is work */
    uv_timer_t delay; /* until the next audit is allowed */
    enum stage stage;
    uint32_t cursor;                       /* slot at which the stage goes on */
    uint16_t number;                       /* swept now */
    uint64_t pending[RS_MAX_CLIENTS / 64]; /* numbers to be swept */
    uint64_t swept[RS_MAX_CLIENTS / 64];   /* numbers that wait for the audit */
    bool audit_wanted;
    bool closed;
    int64_t audited_ns; /* end of the last audit */
    struct mend_counts counts;
};

static int first_of(const uint64_t *bits)
{
    for (int i = 0; i < RS_MAX_CLIENTS / 64; i++) {
        if (bits[i] != 0)
            return i * 64 + __builtin_ctzll(bits[i]);
    }
    return -1;
}

static void set(uint64_t *bits, unsigned number)
{
    bits[number / 64] |= UINT64_C(1) << number % 64;
}

static void clear(uint64_t *bits, unsigned number)
{
    bits[number / 64] &= ~(UINT64_C(1) << number % 64);
}

static void finish_audit(struct mend *mend)
{
    struct proxy *proxy = mend->proxy;
    int number;

    mend->counts.audits++;
    mend->audited_ns = (int64_t)uv_hrtime();
    mend->stage = RESTING;
    if (first_of(mend->swept) >= 0)
        rs_repair_wake(&proxy->repair);
    RS_FAILPOINT(mend_audited);
    while ((number = first_of(mend->swept)) >= 0) {
        clear(mend->swept, (unsigned)number);
        mend->counts.sweeps++;
        clients_swept(proxy, (uint16_t)number);
    }
}

/* Sweeps go first, so that one audit serves all deaths that came together. False: nothing to do
 * now. */
static bool choose(struct mend *mend)
{
    int number = first_of(mend->pending);
    bool due = (int64_t)uv_hrtime() - mend->audited_ns >= AUDIT_GAP_NS;

    mend->cursor = 0;
    if (number >= 0) {
        clear(mend->pending, (unsigned)number);
        mend->number = (uint16_t)number;
        mend->stage = SWEEPING;
        return true;
    }
    if (first_of(mend->swept) < 0 && !(mend->audit_wanted && due))
        return false;
    rs_ring_bell_clear(&mend->proxy->ring);
    RS_FAILPOINT(mend_bell_cleared);
    mend->audit_wanted = rs_repair_hints(&mend->proxy->repair);
    mend->stage = AUDITING;
    return true;
}

static void work(struct mend *mend)
{
    struct proxy *proxy = mend->proxy;

    if (mend->stage == SWEEPING) {
        if (rs_repair_sweep(&proxy->repair, mend->number, clients_reader(proxy, mend->number),
                            &mend->cursor, SLICE_SLOTS)) {
            RS_FAILPOINT(mend_swept);
            set(mend->swept, mend->number);
            mend->stage = RESTING;
        }
    } else if (rs_repair_audit(&proxy->repair, (int64_t)uv_hrtime(), &mend->cursor, SLICE_SLOTS)) {
        finish_audit(mend);
    }
}

static void tell(struct proxy *proxy, const struct rs_repair *before)
{
    const struct rs_repair *now = &proxy->repair;

    if (now->quarantined != before->quarantined)
        log_error(&proxy->log, "ring", 0,
                  "%llu slots hold nonsense and were set aside: a worker wrote where it must not",
                  (unsigned long long)(now->quarantined - before->quarantined));
    if (now->pushed != before->pushed)
        log_info(&proxy->log, "ring", 0, "%llu messages that no inbox cell named were queued again",
                 (unsigned long long)(now->pushed - before->pushed));
}

static void on_idle(uv_idle_t *idle)
{
    struct mend *mend = idle->data;
    int64_t end = (int64_t)uv_hrtime() + SLICE_NS;
    struct rs_repair before = mend->proxy->repair;
    bool more = true;

    do {
        if (mend->stage == RESTING)
            more = choose(mend);
        if (more)
            work(mend);
    } while (more && (int64_t)uv_hrtime() < end);
    tell(mend->proxy, &before);
    if (!more) {
        uv_idle_stop(idle);
        if (mend->audit_wanted)
            mend_audit(mend->proxy);
    }
}

static void on_delay(uv_timer_t *timer)
{
    struct mend *mend = timer->data;

    uv_idle_start(&mend->idle, on_idle);
}

void mend_sweep(struct proxy *proxy, uint16_t number)
{
    struct mend *mend = proxy->mend;

    if (mend == NULL || mend->closed)
        return;
    set(mend->pending, number);
    uv_idle_start(&mend->idle, on_idle);
}

void mend_audit(struct proxy *proxy)
{
    struct mend *mend = proxy->mend;

    if (mend == NULL || mend->closed)
        return;
    mend->audit_wanted = true;
    int64_t wait = mend->audited_ns + AUDIT_GAP_NS - (int64_t)uv_hrtime();
    if (wait <= 0)
        uv_idle_start(&mend->idle, on_idle);
    else if (!uv_is_active((uv_handle_t *)&mend->delay))
        uv_timer_start(&mend->delay, on_delay, (uint64_t)wait / 1000000 + 1, 0);
}

bool mend_busy(const struct proxy *proxy)
{
    return proxy->mend != NULL && !proxy->mend->closed &&
           uv_is_active((const uv_handle_t *)&proxy->mend->idle);
}

struct mend_counts mend_counts(const struct proxy *proxy)
{
    return proxy->mend->counts;
}

int mend_open(struct proxy *proxy)
{
    struct mend *mend = calloc(1, sizeof *mend);

    if (mend == NULL)
        return -ENOMEM;
    mend->proxy = proxy;
    uv_idle_init(&proxy->loop, &mend->idle);
    uv_timer_init(&proxy->loop, &mend->delay);
    mend->idle.data = mend->delay.data = mend;
    proxy->mend = mend;
    return 0;
}

void mend_close(struct proxy *proxy)
{
    struct mend *mend = proxy->mend;

    if (mend == NULL || mend->closed)
        return;
    mend->closed = true;
    uv_close((uv_handle_t *)&mend->idle, NULL);
    uv_close((uv_handle_t *)&mend->delay, NULL);
}

void mend_destroy(struct proxy *proxy)
{
    free(proxy->mend);
    proxy->mend = NULL;
}

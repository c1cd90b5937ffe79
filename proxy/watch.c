/* SPDX-License-Identifier: Apache-2.0 */
/* The second hand: what is held is remembered from pass to pass, because the words carry no times.
 */
#include "proxy/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

#include "proxy/mend.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/tables.h"

#define TICK_MS        1000
#define AUDIT_NS       INT64_C(10000000000)
#define SLICE_NS       500000
#define SLICE_SLOTS    256
#define SEEN_MAX       (1u << 17) /* entries of a table, a power of two; the rest has no age */
#define SEEN_MIN       1024u
#define SLOTS_PER_TICK 65536u /* a pass over more rests longer */

/* One thing that is held: a delivery, a loan or the readers of a slot. */
struct seen {
    uint64_t word;    /* as it was; 0: unused */
    int64_t since_ns; /* first seen so */
    uint32_t slot;
    uint8_t index;
    bool reported;
};

struct table {
    struct seen *entries; /* `capacity` of them */
    uint32_t capacity, count;
};

struct watch {
    struct proxy *proxy;
    uv_timer_t tick;
    uv_idle_t pass; /* active while a pass is under way */
    uv_poll_t bell;
    bool closed;
    uint32_t cursor;       /* slot at which the pass goes on */
    uint32_t rest;         /* ticks until the next pass */
    int64_t audit_ns;      /* when the last regular audit was asked for */
    struct table old, now; /* of the last pass, of the one under way */
};

/* ---- tables ---- */

static uint32_t place(const struct table *table, uint32_t slot, unsigned index)
{
    uint64_t key = (uint64_t)slot * 16 + index;

    return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (table->capacity - 1);
}

static struct seen *find(const struct table *table, uint32_t slot, unsigned index)
{
    if (table->capacity == 0)
        return NULL;
    for (uint32_t at = place(table, slot, index);; at = (at + 1) & (table->capacity - 1)) {
        struct seen *entry = &table->entries[at];
        if (entry->word == 0)
            return NULL;
        if (entry->slot == slot && entry->index == index)
            return entry;
    }
}

static struct seen *insert(struct table *table, const struct seen *entry);

static bool grow(struct table *table)
{
    struct table larger = {.capacity = table->capacity > 0 ? table->capacity * 2 : SEEN_MIN};

    if (larger.capacity > SEEN_MAX)
        return false;
    larger.entries = calloc(larger.capacity, sizeof *larger.entries);
    if (larger.entries == NULL)
        return false;
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (table->entries[i].word != 0)
            insert(&larger, &table->entries[i]);
    }
    free(table->entries);
    *table = larger;
    return true;
}

/* NULL when there is no room. A quarter stays empty, so that a search ends. */
static struct seen *insert(struct table *table, const struct seen *entry)
{
    if (table->count >= table->capacity / 4 * 3 && !grow(table))
        return NULL;
    uint32_t at = place(table, entry->slot, entry->index);
    while (table->entries[at].word != 0)
        at = (at + 1) & (table->capacity - 1);
    table->entries[at] = *entry;
    table->count++;
    return &table->entries[at];
}

uint64_t watch_reading_word(uint64_t readers)
{
    return readers & (RS_READERS_BITS | UINT64_C(0xffff) << 48);
}

uint64_t watch_age_ns(const struct proxy *proxy, uint32_t slot, unsigned index, uint64_t word)
{
    const struct watch *watch = proxy->watch;

    if (watch == NULL) /* a start that failed before */
        return 0;
    const struct seen *entry = find(&watch->now, slot, index);
    if (entry == NULL)
        entry = find(&watch->old, slot, index);
    return entry != NULL && entry->word == word ? uv_hrtime() - (uint64_t)entry->since_ns : 0;
}

/* ---- stalls ---- */

static void report_stall(struct proxy *proxy, const struct seen *seen, int64_t age_ns)
{
    const struct rs_ring *ring = &proxy->ring;
    uint64_t state = rs_load_relaxed(&ring->slots[seen->slot].state);
    uint64_t ticket =
        rs_ticket_pack((uint16_t)ring->layout.sidecar_id, seen->slot, rs_state_generation(state));
    unsigned long long ms = (unsigned long long)age_ns / 1000000;

    if (seen->index == WATCH_LOAN) {
        uint16_t owner = rs_state_owner(seen->word);
        log_warn(&proxy->log, "stall", 0,
                 "slot %u (ticket %016llx) is loaned to client %u (%s) for %llu ms and not sent",
                 seen->slot, (unsigned long long)ticket, owner, clients_name(proxy, owner), ms);
    } else if (seen->index == WATCH_READING) {
        for (uint64_t bits = seen->word & RS_READERS_BITS; bits != 0; bits &= bits - 1) {
            int reader = clients_by_reader(proxy, (unsigned)__builtin_ctzll(bits));
            if (reader >= 0)
                log_warn(&proxy->log, "stall", 0,
                         "slot %u (ticket %016llx) is read by client %d (%s) for %llu ms",
                         seen->slot, (unsigned long long)ticket, reader,
                         clients_name(proxy, (uint16_t)reader), ms);
        }
    } else {
        uint16_t holder = (uint16_t)rs_delivery_holder(seen->word);
        log_warn(&proxy->log, "stall", 0,
                 "slot %u (ticket %016llx) is held by client %u (%s) for %llu ms, route to %s",
                 seen->slot, (unsigned long long)ticket, holder, clients_name(proxy, holder), ms,
                 peers_path(proxy, rs_delivery_destination(seen->word)));
    }
}

static void see(struct watch *watch, uint32_t slot, unsigned index, uint64_t word)
{
    struct proxy *proxy = watch->proxy;
    int64_t now = (int64_t)uv_hrtime();
    const struct seen *before = find(&watch->old, slot, index);
    struct seen fresh = {.word = word, .since_ns = now, .slot = slot, .index = (uint8_t)index};

    if (before != NULL && before->word == word)
        fresh = *before;
    int64_t limit_ns = (int64_t)proxy->config.stall_report_ms * 1000000;
    if (limit_ns > 0 && !fresh.reported && now - fresh.since_ns >= limit_ns) {
        fresh.reported = true;
        report_stall(proxy, &fresh, now - fresh.since_ns);
    }
    insert(&watch->now, &fresh);
}

static void look_at_slot(struct watch *watch, uint32_t slot)
{
    struct rs_slot *record = &watch->proxy->ring.slots[slot];
    uint64_t state = rs_load_acquire(&record->state);

    if (rs_state_phase(state) == RS_LOANED)
        see(watch, slot, WATCH_LOAN, state);
    if (rs_state_phase(state) != RS_SEALED)
        return;
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_acquire(&record->delivery[i]);
        if (rs_delivery_phase(word) == RS_HELD &&
            rs_delivery_generation(word) == rs_state_generation(state))
            see(watch, slot, i, word);
    }
    uint64_t readers = rs_load_acquire(&record->readers);
    if ((rs_state_flags(state) & RS_FLAG_TICKET) && (readers & RS_READERS_BITS) != 0)
        see(watch, slot, WATCH_READING, watch_reading_word(readers));
}

static void on_pass(uv_idle_t *idle)
{
    struct watch *watch = idle->data;
    uint32_t slots = watch->proxy->ring.layout.slot_count;
    uint64_t end = uv_hrtime() + SLICE_NS;

    do {
        for (uint32_t i = 0; i < SLICE_SLOTS && watch->cursor < slots; i++)
            look_at_slot(watch, watch->cursor++);
    } while (watch->cursor < slots && uv_hrtime() < end);
    if (watch->cursor < slots)
        return;
    free(watch->old.entries);
    watch->old = watch->now;
    watch->now = (struct table){0};
    watch->cursor = 0;
    watch->rest = slots / SLOTS_PER_TICK;
    uv_idle_stop(idle);
}

/* ---- the tick ---- */

static void look_at_files(struct proxy *proxy)
{
    if (proxy->damaged ||
        !(ring_files_damaged(&proxy->ring) ||
          ring_file_is_cut(proxy->files.control_fd, proxy->ring.layout.control_bytes) ||
          ring_file_is_cut(proxy->files.body_fd, proxy->ring.layout.body_bytes)))
        return;
    proxy->damaged = true;
    rs_store_release(&proxy->ring.shared->draining, 1);
    log_error(&proxy->log, "ring", 0,
              "a file of the ring was truncated or lost a page: nothing more is loaned, sent or "
              "received; end the workers and restart this sidecar to get a new ring (%s, %s)",
              proxy->files.control_path, proxy->files.body_path);
}

static void on_tick(uv_timer_t *timer)
{
    struct watch *watch = timer->data;
    struct proxy *proxy = watch->proxy;
    int64_t now = (int64_t)uv_hrtime();

    log_tick(&proxy->log);
    look_at_files(proxy);
    if (proxy->damaged)
        return;
    tables_tick(proxy);
    clients_tick(proxy);
    /* Who rang may have had no eventfd, or one of an earlier sidecar. */
    if (rs_load_relaxed(&proxy->ring.shared->bell) != 0 || now - watch->audit_ns >= AUDIT_NS) {
        watch->audit_ns = now;
        mend_audit(proxy);
    }
    if (watch->rest > 0)
        watch->rest--;
    else if (!uv_is_active((uv_handle_t *)&watch->pass))
        uv_idle_start(&watch->pass, on_pass);
}

/* Workers have the same description: one that makes it blocking and reads first must not stop this
 * process. Kernels before 5.8 know no such read of an eventfd. */
static bool take_bell(int fd)
{
    uint64_t count;
    struct iovec iov = {&count, sizeof count};

    ssize_t got = preadv2(fd, &iov, 1, -1, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP)
        got = read(fd, &count, sizeof count);
    return got > 0;
}

static void on_bell(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = poll->data;

    (void)events;
    if (status >= 0 && take_bell(watch->proxy->bell_event))
        mend_audit(watch->proxy);
}

int watch_open(struct proxy *proxy)
{
    struct watch *watch = calloc(1, sizeof *watch);

    if (watch == NULL)
        return -ENOMEM;
    int rc = uv_poll_init(&proxy->loop, &watch->bell, proxy->bell_event);
    if (rc < 0) {
        free(watch);
        return rc;
    }
    watch->proxy = proxy;
    watch->audit_ns = (int64_t)uv_hrtime();
    uv_timer_init(&proxy->loop, &watch->tick);
    uv_idle_init(&proxy->loop, &watch->pass);
    watch->tick.data = watch->pass.data = watch->bell.data = watch;
    proxy->watch = watch;
    uv_timer_start(&watch->tick, on_tick, TICK_MS, TICK_MS);
    return uv_poll_start(&watch->bell, UV_READABLE, on_bell);
}

void watch_close(struct proxy *proxy)
{
    struct watch *watch = proxy->watch;

    if (watch == NULL || watch->closed)
        return;
    watch->closed = true;
    uv_close((uv_handle_t *)&watch->tick, NULL);
    uv_close((uv_handle_t *)&watch->pass, NULL);
    uv_close((uv_handle_t *)&watch->bell, NULL);
}

void watch_destroy(struct proxy *proxy)
{
    if (proxy->watch == NULL)
        return;
    free(proxy->watch->old.entries);
    free(proxy->watch->now.entries);
    free(proxy->watch);
    proxy->watch = NULL;
}

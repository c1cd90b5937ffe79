/* SPDX-License-Identifier: Apache-2.0 */
/* libringside against rings that no real sidecar serves: every verb, every way it can fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "client/c/ringside.h"
#include "tests/unit/emulator.h"
#include "tests/unit/fake_sidecar.h"

#define MS INT64_C(1000000)

static struct ringside *a, *b, *c; /* workers of stages 0, 1, 2 */
static struct ringside_slot slot;
static struct ringside_message message;
static char last_log[512];

/* Done once: within the next line of the log, after the next epoll_wait, after the next madvise (in the middle of mapping
 * a ring). */
static _Atomic(void (*)(void)) after_log, after_epoll, after_madvise;

static void do_once(_Atomic(void (*)(void)) *hook)
{
    void (*call)(void) = atomic_exchange(hook, NULL);

    if (call != NULL)
        call();
}

static void keep_log(void *data, const char *line)
{
    (void)data;
    snprintf(last_log, sizeof last_log, "%s", line);
    do_once(&after_log);
}

/* The library's, too: it stands in front of the C library's. */
__attribute__((visibility("default"))) int epoll_wait(int fd, struct epoll_event *events, int count,
                                                      int timeout_ms)
{
    int rc = (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 0);

    do_once(&after_epoll);
    return rc;
}

__attribute__((visibility("default"))) int madvise(void *base, size_t bytes, int advice)
{
    int rc = (int)syscall(SYS_madvise, base, bytes, advice);

    do_once(&after_madvise);
    return rc;
}

static struct ringside *join(unsigned stage)
{
    struct ringside_connect_options options = {
        .socket = fake_stages[stage].path, .name = "test", .log = keep_log};
    struct ringside *connection = NULL;

    if (ringside_connect(&connection, &options) != 0)
        fail_msg("%s", ringside_explain(NULL));
    return connection;
}

static int open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int fds_before;

static int start_with(unsigned slots, unsigned cells, unsigned depth)
{
    const struct rs_class_spec classes[] = {{4096, slots}, {65536, 4}};

    fds_before = open_fds();
    fake_start_all(classes, 2, cells, depth);
    return 0;
}

static int start(void **state)
{
    (void)state;
    fake_when_full = RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK;
    fake_ttl_ns = 0;
    fake_ticket_ttl_ns = 60000 * (uint64_t)MS;
    fake_attempts = 3;
    fake_no_readers = fake_unlinked_peers = fake_forget_sessions = false;
    fake_unlinked_ring = 0;
    memset(fake_meaning, 0, sizeof fake_meaning);
    atomic_store(&after_log, NULL);
    atomic_store(&after_epoll, NULL);
    atomic_store(&after_madvise, NULL);
    start_with(8, 16, 8);
    a = join(0);
    b = join(1);
    c = join(2);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    for (unsigned i = 0; i < FAKE_STAGES; i++) {
        assert_int_equal(fake_count(i, RS_LOANED), 0);
    }
    fake_stop_all();
    assert_int_equal(open_fds(), fds_before);
    return 0;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        int ok_ = (call);                                                                          \
        if (ok_ < 0)                                                                               \
            fail_msg("%s: %s: %s / %s", #call, ringside_error_name(ok_), ringside_explain(a),      \
                     ringside_explain(b));                                                         \
    } while (0)

static void loan_bytes(struct ringside *connection, int64_t bytes)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {bytes}};

    OK(ringside_loan(connection, &tensor, 1, 0, 0, &slot));
}

static int send_byte(struct ringside *connection, const char *route, uint8_t value)
{
    struct ringside_options none = {.timeout_ns = 0};

    loan_bytes(connection, 1);
    *(uint8_t *)slot.tensors[0].data = value;
    int rc = ringside_send(connection, &slot, route, &none);
    if (rc < 0)
        ringside_abandon(connection, &slot);
    return rc;
}

static int value_of(const struct ringside_message *from)
{
    return *(const uint8_t *)from->tensors[0].data;
}

/* ---- loan, send, receive ---- */

static void client_hands_a_message_over(void **state)
{
    struct ringside_tensor tensors[] = {
        {.dtype = RINGSIDE_FLOAT32, .rank = 3, .shape = {2, 3, 4}},
        {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {3}},
        {.dtype = RINGSIDE_INT64, .rank = 0},
    };
    struct ringside_options options = {
        .metadata = "{\"a\":1}", .metadata_bytes = 7, .metadata_kind = RINGSIDE_JSON,
        .stream_id = 11, .sequence = 12, .trace_id = {1, 2, 3}, .ttl_ns = 5000 * MS};

    (void)state;
    assert_string_equal(ringside_stage(a), "stage0");
    OK(ringside_loan(a, tensors, 3, 100, 0, &slot));
    assert_int_equal(slot.tensors[0].bytes, 96);
    assert_int_equal((uintptr_t)slot.tensors[1].data % 256, 0);
    memset(slot.tensors[0].data, 0x11, 96);
    memset(slot.tensors[1].data, 0x22, 3);
    *(int64_t *)slot.tensors[2].data = -5;
    uint64_t ticket = slot.ticket;
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.ticket, ticket);
    assert_int_equal(message.tensor_count, 3);
    assert_int_equal(message.tensors[0].dtype, RINGSIDE_FLOAT32);
    assert_int_equal(message.tensors[0].rank, 3);
    assert_int_equal(message.tensors[0].shape[2], 4);
    assert_int_equal(((const uint8_t *)message.tensors[0].data)[95], 0x11);
    assert_int_equal(((const uint8_t *)message.tensors[1].data)[2], 0x22);
    assert_int_equal(*(const int64_t *)message.tensors[2].data, -5);
    assert_int_equal(message.metadata_bytes, 7);
    assert_memory_equal(message.metadata, "{\"a\":1}", 7);
    assert_int_equal(message.metadata_kind, RINGSIDE_JSON);
    assert_int_equal(message.stream_id, 11);
    assert_int_equal(message.sequence, 12);
    assert_int_equal(message.trace_id[2], 3);
    assert_int_equal(message.attempts, 0);
    assert_int_equal(message.ttl_ns, 5000 * MS);
    assert_true(message.publish_ns <= (uint64_t)rs_now_ns());
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_count(0, RS_FREE), 12);
    assert_int_equal(fake_counter(0, 1, RS_SENT), 1);
    assert_int_equal(fake_counter(0, 1, RS_SENT_BYTES), 96 + 3 + 8 + 7);
    assert_int_equal(fake_counter(1, 1, RS_RECEIVED), 1);
    assert_int_equal(fake_counter(1, 1, RS_RELEASED), 1);
}

static void client_hands_over_empty_and_scalar(void **state)
{
    struct ringside_tensor tensors[] = {
        {.dtype = RINGSIDE_FLOAT64, .rank = 4, .shape = {1, 8, 0, 128}},
        {.dtype = RINGSIDE_BOOL, .rank = 0},
        {.dtype = RINGSIDE_FLOAT64, .rank = 1, .shape = {0}},
    };

    (void)state;
    OK(ringside_loan(a, tensors, 3, 0, 0, &slot));
    *(uint8_t *)slot.tensors[1].data = 1;
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.tensors[0].bytes, 0);
    assert_int_equal(message.tensors[0].shape[3], 128);
    assert_int_equal(*(const uint8_t *)message.tensors[1].data, 1);
    assert_int_equal(message.tensors[2].rank, 1);
    OK(ringside_release(b, &message));
}

static void client_consumer_cannot_write(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 9));
    OK(ringside_receive(b, &message, 0));
    volatile uint8_t *data = message.tensors[0].data;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool seen = false;
    while (fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        char rights[8];

        if (sscanf(line, "%lx-%lx %7s", &first, &last, rights) == 3 && (uintptr_t)data >= first &&
            (uintptr_t)data < last) {
            assert_int_equal(rights[1], '-');
            seen = true;
        }
    }
    fclose(maps);
    assert_true(seen);
    OK(ringside_release(b, &message));
}

static void client_last_tensor_may_shrink(void **state)
{
    (void)state;
    loan_bytes(a, 1000);
    slot.tensors[0].shape[0] = 10;
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.tensors[0].bytes, 10);
    OK(ringside_release(b, &message));
    loan_bytes(a, 1000);
    slot.tensors[0].shape[0] = 5000;
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ETOO_BIG);
    slot.tensors[0].shape[0] = 1000;
    slot.tensors[0].data = (uint8_t *)slot.tensors[0].data + 1;
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ESTATE);
    OK(ringside_abandon(a, &slot));
}

static void client_refuses_what_cannot_be_loaned(void **state)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {65537}};

    (void)state;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ETOO_BIG);
    assert_non_null(strstr(ringside_explain(a), "65536"));
    tensor.shape[0] = 65536;
    OK(ringside_loan(a, &tensor, 1, 0, 0, &slot));
    OK(ringside_abandon(a, &slot));
    assert_int_equal(ringside_loan(a, &tensor, 1, 1, 0, &slot), -RINGSIDE_ETOO_BIG);
    tensor.shape[0] = -1;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ESHAPE);
    tensor.rank = 9;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ESHAPE);
    tensor.rank = 0;
    tensor.dtype = 77;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EDTYPE);
    assert_int_equal(ringside_loan(a, &tensor, 0, 0, 0, &slot), -RINGSIDE_ESHAPE);
    assert_int_equal(ringside_loan(a, &tensor, 65, 0, 0, &slot), -RINGSIDE_ESHAPE);
}

static void client_spent_slots_and_messages(void **state)
{
    (void)state;
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(b, &slot, "1", NULL), -RINGSIDE_ESTATE); /* not its loan */
    assert_int_equal(ringside_send(a, &slot, "nowhere", NULL), -RINGSIDE_ENO_ROUTE);
    OK(ringside_send(a, &slot, "1", NULL)); /* still ours after the error */
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_abandon(a, &slot), -RINGSIDE_ESTATE);
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ringside_release(a, &message), -RINGSIDE_ESTATE);
    OK(ringside_release(b, &message));
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_nack(b, &message), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_forward(b, &message, "2", NULL), -RINGSIDE_ESTATE);
}

static void client_metadata_room(void **state)
{
    static char much[5000];
    struct ringside_options options = {.metadata = much, .metadata_bytes = 4000};

    (void)state;
    memset(much, 'x', sizeof much);
    loan_bytes(a, 96); /* nothing reserved, but the slot has room */
    options.metadata_bytes = 4001;
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_EINVALID);
    options.metadata_bytes = 4000;
    options.metadata_kind = 3;
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_EINVALID);
    options.metadata_kind = RINGSIDE_OPAQUE;
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.metadata_bytes, 4000);
    assert_int_equal(((const char *)message.metadata)[3999], 'x');
    OK(ringside_release(b, &message));
}

/* ---- full and empty ---- */

static void client_empty_inbox_times_out(void **state)
{
    int64_t began_ns = rs_now_ns();

    (void)state;
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive(b, &message, 20 * MS), -RINGSIDE_ETIMEOUT);
    assert_true(rs_now_ns() - began_ns >= 20 * MS);
}

/* All slots taken: asking for more says so, and giving one back is never held up by those who ask. */
static void client_no_free_slot(void **state)
{
    static struct ringside_slot slots[8];
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    (void)state;
    for (int i = 0; i < 8; i++)
        OK(ringside_loan(a, &tensor, 1, 0, 0, &slots[i]));
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EFULL);
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 5 * MS, &slot), -RINGSIDE_ETIMEOUT);
    OK(ringside_abandon(a, &slots[3]));
    OK(ringside_loan(a, &tensor, 1, 0, 0, &slot));
    OK(ringside_abandon(a, &slot));
    for (int i = 0; i < 8; i++)
        assert_int_equal(ringside_abandon(a, &slots[i]), i == 3 ? -RINGSIDE_ESTATE : 0);
}

static void *release_later(void *data)
{
    struct timespec time = {0, 20000000};

    nanosleep(&time, NULL);
    OK(ringside_abandon(a, data));
    return NULL;
}

static void client_loan_waits_for_a_slot(void **state)
{
    static struct ringside_slot slots[8];
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};
    pthread_t thread;

    (void)state;
    for (int i = 0; i < 8; i++)
        OK(ringside_loan(a, &tensor, 1, 0, 0, &slots[i]));
    pthread_create(&thread, NULL, release_later, &slots[5]);
    OK(ringside_loan(a, &tensor, 1, 0, RINGSIDE_FOREVER, &slot));
    pthread_join(thread, NULL);
    OK(ringside_abandon(a, &slot));
}

static void client_draining_refuses_loans(void **state)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    (void)state;
    rs_store_relaxed(&fake_stages[0].ring.shared->draining, 1);
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EDRAINING);
}

static void fill_inbox(void)
{
    for (int i = 0; i < 4; i++)
        OK(send_byte(a, "1", (uint8_t)i));
}

static void restart(Ringside__V1__Route__WhenFull when_full, unsigned cells, unsigned depth)
{
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    fake_stop_all();
    fake_when_full = when_full;
    start_with(8, cells, depth);
    a = join(0);
    b = join(1);
    c = join(2);
}

static void restart_with(Ringside__V1__Route__WhenFull when_full)
{
    restart(when_full, 16, 4);
}

static void client_full_inbox_is_an_error(void **state)
{
    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__ERROR);
    fill_inbox();
    assert_int_equal(send_byte(a, "1", 9), -RINGSIDE_EFULL);
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_EFULL); /* never waits */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    OK(ringside_send(a, &slot, "1", NULL)); /* was still ours */
}

static void client_full_inbox_drops_the_oldest(void **state)
{
    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__DROP_OLDEST);
    fill_inbox();
    OK(send_byte(a, "1", 4));
    OK(send_byte(a, "1", 5));
    assert_int_equal(fake_counter(0, 1, RS_DROPPED), 2);
    for (int i = 2; i <= 5; i++) {
        OK(ringside_receive(b, &message, 0));
        assert_int_equal(value_of(&message), i);
        OK(ringside_release(b, &message));
    }
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(fake_count(0, RS_FREE), 12);
    /* Only messages of the own ring are dropped. */
    for (int i = 0; i < 4; i++)
        OK(send_byte(c, "1", 0));
    assert_int_equal(send_byte(a, "1", 1), -RINGSIDE_EFULL);
}

static void *receive_later(void *data)
{
    struct timespec time = {0, 20000000};
    static struct ringside_message taken;

    (void)data;
    nanosleep(&time, NULL);
    OK(ringside_receive(b, &taken, 0));
    OK(ringside_release(b, &taken));
    return NULL;
}

static void client_full_inbox_blocks(void **state)
{
    struct ringside_options options = {.timeout_ns = 5 * MS};
    pthread_t thread;

    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK);
    fill_inbox();
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_ETIMEOUT);
    pthread_create(&thread, NULL, receive_later, NULL);
    OK(ringside_send(a, &slot, "1", NULL));
    pthread_join(thread, NULL);
}

static void client_peer_not_connected(void **state)
{
    struct ringside_options options = {.timeout_ns = 30 * MS};

    (void)state;
    fake_unlinked_peers = true;
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_ETIMEOUT);
    fake_unlinked_peers = false;
    options.timeout_ns = 2000 * MS;
    OK(ringside_send(a, &slot, "1", &options));
}

/* A ring that cannot be opened yet: its messages stay, and are there when it can. */
static void client_ring_not_admitted_yet(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 7));
    fake_unlinked_peers = true;
    assert_int_equal(ringside_receive(b, &message, 30 * MS), -RINGSIDE_ETIMEOUT);
    fake_unlinked_peers = false;
    OK(ringside_receive(b, &message, 3000 * MS));
    assert_int_equal(value_of(&message), 7);
    OK(ringside_release(b, &message));
}

static void take_byte(struct ringside *connection, int value)
{
    OK(ringside_receive(connection, &message, 0));
    assert_int_equal(value_of(&message), value);
    OK(ringside_release(connection, &message));
}

/* A ring that is away must not keep back what others sent, whichever was met last. */
static void client_ring_away_hides_no_other(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    OK(send_byte(c, "1", 2));
    fake_unlinked_ring = fake_number(1, 2);
    take_byte(b, 1);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    fake_unlinked_ring = 0;
    OK(ringside_receive(b, &message, 5000 * MS));
    assert_int_equal(value_of(&message), 2);
    OK(ringside_release(b, &message));
}

/* ---- ring numbers that change their meaning ---- */

/* How many read-only mappings of a stage's body this process has. */
static int body_views(unsigned stage)
{
    struct stat body;
    char line[512];
    int count = 0;

    fstat(fake_stages[stage].body_fd, &body);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long inode;
        char rights[8];

        if (sscanf(line, "%*s %7s %*s %*s %lu", rights, &inode) == 2 && inode == body.st_ino &&
            rights[1] == '-')
            count++;
    }
    fclose(maps);
    return count;
}

/* What is held of a ring that left stays readable and can be given back; then its body goes. */
static void client_ring_number_means_another(void **state)
{
    static struct ringside_message held;
    uint64_t ticket;

    (void)state;
    OK(send_byte(a, "1", 7));
    OK(ringside_receive(b, &held, 0));
    ticket = held.ticket;
    fake_renumber(1, fake_number(1, 0), 2);
    assert_int_equal(ringside_receive(b, &message, MS), -RINGSIDE_ETIMEOUT); /* waiting notices */
    OK(send_byte(c, "1", 8));
    take_byte(b, 8);
    assert_int_equal(message.ticket >> 48, 103);
    assert_int_equal(value_of(&held), 7);
    assert_int_equal(held.ticket, ticket);
    assert_int_equal(body_views(0), 1);
    OK(ringside_release(b, &held));
    assert_int_equal(fake_count(0, RS_FREE), 12);
    for (int i = 0; i < 100 && body_views(0) != 0; i++)
        assert_int_equal(ringside_receive(b, &message, 100 * MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 0);
    OK(send_byte(c, "1", 9)); /* the other one goes on */
    take_byte(b, 9);
}

/* A worker that is never idle notices as well. */
static void client_ring_number_means_another_when_busy(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 7));
    take_byte(b, 7);
    fake_renumber(1, fake_number(1, 0), 2);
    for (int i = 0; i < 4096; i++) {
        OK(send_byte(b, "1", 3));
        take_byte(b, 3);
    }
    OK(send_byte(c, "1", 8));
    take_byte(b, 8);
}

/* A reading by ticket of a ring that left, begun through the sidecar for want of a reader number, keeps the body. */
static void client_retired_ring_is_still_read(void **state)
{
    uint64_t ticket;

    (void)state;
    fake_no_readers = true;
    OK(send_byte(a, "1", 7));
    take_byte(b, 7);
    loan_bytes(a, 1);
    *(uint8_t *)slot.tensors[0].data = 0x5a;
    OK(ringside_share(a, &slot, 1, NULL, &ticket));
    static struct ringside_message reading;
    OK(ringside_read(b, ticket, &reading));
    fake_renumber(1, fake_number(1, 0), 2);
    assert_int_equal(ringside_receive(b, &message, MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 1);
    assert_int_equal(value_of(&reading), 0x5a);
    OK(ringside_release(b, &reading));
    for (int i = 0; i < 100 && body_views(0) != 0; i++)
        assert_int_equal(ringside_receive(b, &message, 100 * MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 0);
}

/* An inbox in which a message was passed on judges cells of that ring's number by that ring, but only as long as the
 * number means it. */
static void client_forward_forgets_ring_numbers(void **state)
{
    struct rs_inbox *inbox = &fake_stages[2].inbox;
    unsigned number = fake_number(2, 0);

    (void)state;
    restart(RINGSIDE__V1__ROUTE__WHEN_FULL__ERROR, 8, 8);
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 1);
    take_byte(c, 1);
    OK(send_byte(a, "1", 2));
    static struct ringside_message later;
    OK(ringside_receive(b, &later, 0));
    fake_renumber(2, number, 2);
    for (int i = 0; i < 8; i++)
        OK(send_byte(c, "2", (uint8_t)(10 + i)));
    /* All cells are full, but the hint says that there is room, as it may when producers race. */
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail), cells[8];
    rs_store_relaxed(&inbox->shared->head, tail);
    for (int i = 0; i < 8; i++) {
        cells[i] = rs_load_relaxed(&inbox->cells[i]);
        assert_int_equal(rs_cell_ring(cells[i]), number);
    }
    OK(send_byte(b, "2", 20));
    for (int i = 0; i < 8; i++)
        assert_true(rs_load_relaxed(&inbox->cells[i]) == cells[i]);
    /* The first stage believes yet that its number holds: no cell of another ring may be made. */
    assert_int_equal(ringside_forward(b, &later, "2", NULL), 0);
    for (int i = 0; i < 8; i++)
        assert_true(rs_load_relaxed(&inbox->cells[i]) == cells[i]);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

/* The own ring's number may come to mean another one, too, before the own sidecar knows it. */
static void client_send_waits_for_its_number(void **state)
{
    struct rs_inbox *inbox = &fake_stages[1].inbox;
    unsigned number = fake_number(1, 0);

    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(b, 1);
    fake_renumber(1, number, 2);
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail);
    assert_int_equal(send_byte(a, "1", 2), -RINGSIDE_EUNAVAILABLE);
    assert_true(rs_load_relaxed(&inbox->shared->tail) == tail);
    fake_renumber(1, number + 2, 0); /* it gets another one */
    OK(send_byte(a, "1", 3));
    assert_int_equal(rs_cell_ring(rs_load_relaxed(&inbox->cells[tail % 16])), number + 2);
    assert_int_equal(ringside_receive(b, &message, 50 * MS), 0);
    assert_int_equal(value_of(&message), 3);
    OK(ringside_release(b, &message));
    OK(send_byte(c, "1", 4));
    take_byte(b, 4);
}

/* ---- delivery ---- */

static void client_fan_out(void **state)
{
    (void)state;
    OK(send_byte(a, "all", 5));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 5);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(value_of(&message), 5);
    OK(ringside_release(c, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_nack_delivers_again(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 3));
    for (unsigned attempt = 0; attempt < fake_attempts; attempt++) {
        OK(ringside_receive(b, &message, 0));
        assert_int_equal(message.attempts, attempt);
        OK(ringside_nack(b, &message));
    }
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(fake_counter(1, 1, RS_NACKED), 3);
    assert_int_equal(fake_counter(1, 1, RS_DEAD_LETTERED), 1);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_expired_is_skipped(void **state)
{
    struct ringside_options options = {.ttl_ns = 1};

    (void)state;
    loan_bytes(a, 1);
    OK(ringside_send(a, &slot, "1", &options));
    OK(send_byte(a, "1", 2));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    assert_int_equal(fake_counter(1, 1, RS_EXPIRED), 1);
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(b, &message));
}

static void client_batch(void **state)
{
    static struct ringside_message messages[8];

    (void)state;
    for (int i = 0; i < 5; i++)
        OK(send_byte(a, "1", (uint8_t)i));
    assert_int_equal(ringside_receive_batch(b, messages, 3, 0), 3);
    assert_int_equal(ringside_receive_batch(b, messages + 3, 5, 0), 2);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(value_of(&messages[i]), i);
        OK(ringside_release(b, &messages[i]));
    }
    assert_int_equal(ringside_receive_batch(b, messages, 8, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive_batch(b, messages, 0, 0), -RINGSIDE_EINVALID);
}

/* A header that makes no sense reaches nobody, and does not stop what comes after it. */
static void client_corrupt_header_is_refused(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    uint32_t broken = (uint32_t)(slot.ticket >> 28) & 0xfffff;
    rs_store_relaxed(&fake_stages[0].ring.slots[broken].header[RS_HEADER_SHAPE_0], 1u << 20);
    OK(send_byte(a, "1", 2));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_counter(1, 1, RS_DEAD_LETTERED), 1);
    assert_non_null(strstr(last_log, "header"));
    assert_int_equal(fake_count(0, RS_FREE), 12);
}

static void client_forward_in_place(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 8));
    OK(ringside_receive(b, &message, 0));
    uint64_t ticket = message.ticket;
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 1);
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ESTATE);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(message.ticket, ticket);
    assert_int_equal(value_of(&message), 8);
    OK(ringside_release(c, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_counter(1, 1, RS_FORWARDED), 1);
    assert_int_equal(fake_counter(1, 1, RS_FORWARD_COPIES), 0);
}

static void client_forward_by_copy(void **state)
{
    struct ringside_options options = {.metadata = "meta", .metadata_bytes = 4, .sequence = 6};

    (void)state;
    loan_bytes(a, 100);
    memset(slot.tensors[0].data, 0x5a, 100);
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    /* The first ring does not know the next inbox. */
    rs_store_relaxed(&fake_stages[0].ring.destinations[2].state,
                     rs_destination_state(2, 3, 1, RS_DEST_INBOX, false));
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 0);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_counter(1, 1, RS_FORWARD_COPIES), 1);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(message.ticket >> 48, 102);
    assert_int_equal(message.tensors[0].bytes, 100);
    assert_int_equal(((const uint8_t *)message.tensors[0].data)[99], 0x5a);
    assert_memory_equal(message.metadata, "meta", 4);
    assert_int_equal(message.sequence, 6);
    OK(ringside_release(c, &message));
}

static void client_close_gives_everything_back(void **state)
{
    struct ringside *worker = join(1);

    (void)state;
    OK(send_byte(a, "1", 4));
    OK(ringside_receive(worker, &message, 0));
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    loan_bytes(worker, 10);
    assert_int_equal(fake_count(1, RS_LOANED), 1);
    ringside_close(worker);
    assert_int_equal(fake_count(1, RS_LOANED), 0);
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 4);
    assert_int_equal(message.attempts, 1);
    OK(ringside_release(b, &message));
}

/* ---- by ticket ---- */

static uint64_t share(unsigned readers, uint64_t ttl_ns)
{
    struct ringside_options options = {.ttl_ns = ttl_ns};
    uint64_t ticket = 0;

    loan_bytes(a, 4);
    memcpy(slot.tensors[0].data, "abcd", 4);
    OK(ringside_share(a, &slot, readers, &options, &ticket));
    return ticket;
}

static void client_ticket_counted_readers(void **state)
{
    static struct ringside_message second;
    uint64_t ticket = share(2, 0);

    (void)state;
    OK(ringside_read(a, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_read(a, ticket, &second)); /* a second thread's, say: one bit and one count */
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(a, &second));
    OK(ringside_read(a, ticket, &message));
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    assert_int_equal(fake_counter(0, 1, RS_SHARED), 1);
    assert_int_equal(fake_counter(0, 1, RS_READS), 3);
}

static struct ringside_message first_reading;

static void end_first_reading(void)
{
    assert_int_equal(ringside_release(a, &first_reading), -RINGSIDE_ECORRUPT);
}

/* Of two readings at once one counts and ends first, the other fails and ends last. */
static void client_ticket_counts_when_any_did(void **state)
{
    uint64_t ticket = share(1, 0);

    (void)state;
    ringside_close(join(0)); /* the library's guard comes before the test framework's handler again */
    OK(ringside_read(a, ticket, &first_reading));
    assert_int_equal(ftruncate(fake_stages[0].body_fd, 0), 0);
    assert_int_equal(*(volatile const uint8_t *)first_reading.tensors[0].data, 0);
    after_log = end_first_reading; /* the log tells of the cut file in the middle of the second reading */
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ECORRUPT);
    assert_null(after_log);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_kept_until_freed(void **state)
{
    uint64_t ticket = share(0, 0);

    (void)state;
    for (int i = 0; i < 5; i++) {
        OK(ringside_read(a, ticket, &message));
        OK(ringside_release(a, &message));
    }
    OK(ringside_read(a, ticket, &message));
    OK(ringside_free(a, ticket)); /* while it is being read: through the sidecar */
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_free(a, ticket), -RINGSIDE_ESTALE_TICKET);
    ticket = share(0, 0);
    OK(ringside_free(a, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

/* It has the 16 bits of generation that `readers` compares, and the slot's bit of this process is on already. */
static void client_ticket_stale_beside_a_reading(void **state)
{
    uint64_t ticket = share(0, 0), stale = ticket ^ UINT64_C(1) << 20;

    (void)state;
    OK(ringside_read(a, ticket, &message));
    static struct ringside_message second;
    assert_int_equal(ringside_read(a, stale, &second), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_free(a, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 1); /* the first reading has kept its bit */
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_errors_are_distinct(void **state)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    uint64_t ticket = share(1, 0);

    (void)state;
    assert_int_equal(ringside_read(a, 0, &message), -RINGSIDE_EMALFORMED_TICKET);
    assert_int_equal(ringside_read_text(a, "rst1-", &message), -RINGSIDE_EMALFORMED_TICKET);
    assert_int_equal(ringside_read(a, rs_ticket_pack(999, 1, 1), &message),
                     -RINGSIDE_EFOREIGN_TICKET);
    assert_int_equal(ringside_read(a, ticket + 1, &message), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_ticket_text(a, ticket, text));
    uint64_t bare;
    OK(ringside_ticket_parse(text, &bare));
    assert_int_equal(bare, ticket);
    struct rs_ticket parts;
    rs_ticket_parse(&parts, text);
    char other[RINGSIDE_TICKET_TEXT_BYTES];
    rs_ticket_format(other, parts.sidecar_id, parts.slot, parts.generation, parts.incarnation ^ 1);
    assert_int_equal(ringside_read_text(a, other, &message), -RINGSIDE_EFOREIGN_TICKET);
    /* Equal in the 28 bits that a bare ticket has. */
    rs_ticket_format(other, parts.sidecar_id, parts.slot, parts.generation ^ 1u << 31,
                     parts.incarnation);
    assert_int_equal(ringside_read_text(a, other, &message), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_read_text(a, text, &message));
    OK(ringside_release(a, &message));
    assert_int_equal(ringside_ticket_text(a, ticket, text), -RINGSIDE_ESTALE_TICKET);
    ticket = share(1, 1);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_EEXPIRED_TICKET);
    OK(ringside_free(a, ticket));
    loan_bytes(a, 1);
    struct ringside_options longer = {.ttl_ns = fake_ticket_ttl_ns + 1};
    assert_int_equal(ringside_share(a, &slot, 1, &longer, &ticket), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_share(a, &slot, 256, NULL, &ticket), -RINGSIDE_EINVALID);
    OK(ringside_abandon(a, &slot));
}

static void client_ticket_of_another_stage(void **state)
{
    uint64_t ticket;

    (void)state;
    OK(send_byte(a, "1", 1)); /* b maps the ring */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    ticket = share(1, 0);
    OK(ringside_read(b, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_without_reader_number(void **state)
{
    (void)state;
    fake_no_readers = true;
    struct ringside *worker = join(0);
    uint64_t ticket = share(1, 0);
    OK(ringside_read(worker, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(worker, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_read(worker, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    ticket = share(0, 0);
    OK(ringside_free(worker, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    ringside_close(worker);
}

static void client_close_ends_readings(void **state)
{
    struct ringside *worker = join(0);
    uint64_t ticket = share(1, 0);

    (void)state;
    OK(ringside_read(worker, ticket, &message));
    ringside_close(worker);
    OK(ringside_read(a, ticket, &message)); /* not counted: its reader went away */
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

/* ---- fork, poll, return ---- */

static struct ringside_slot loaned; /* of a */

static bool every_call_says_forked(void)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES] = "rst1-00070000312345678-9abcdef0-5efc";
    uint64_t ticket = (uint64_t)101 << 48 | 1;
    const int codes[] = {
        ringside_send(a, &loaned, "1", NULL),
        ringside_share(a, &loaned, 1, NULL, &ticket),
        ringside_abandon(a, &loaned),
        ringside_receive(b, &message, RINGSIDE_FOREVER),
        ringside_receive_batch(b, &message, 1, 0),
        ringside_read(b, ticket, &message),
        ringside_read_text(b, text, &message),
        ringside_nack(b, &message),
        ringside_forward(b, &message, "2", NULL),
        ringside_free(b, ticket),
        ringside_free_text(b, text),
        ringside_ticket_text(b, ticket, text),
    };

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (codes[i] != -RINGSIDE_EFORKED)
            return false;
    }
    return true;
}

static void client_forked_child_is_told(void **state)
{
    int status;

    (void)state;
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    loan_bytes(a, 1);
    loaned = slot;
    pid_t child = fork();
    if (child == 0) {
        struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};
        int rc = 0;

        rc |= ringside_loan(a, &tensor, 1, 0, 0, &slot) != -RINGSIDE_EFORKED;
        rc |= (ringside_receive(b, &message, 0) != -RINGSIDE_EFORKED) << 1;
        rc |= (ringside_release(b, &message) != -RINGSIDE_EFORKED) << 2;
        rc |= (ringside_fd(b) != -RINGSIDE_EFORKED || !every_call_says_forked()) << 3;
        rc |= (strstr(ringside_explain(b), "fork") == NULL) << 4;
        ringside_close(a);
        ringside_close(b);
        ringside_close(c);
        char path[64];
        snprintf(path, sizeof path, "%s/1.sock", fake_dir);
        struct ringside_connect_options options = {.socket = path};
        struct ringside *anew;
        rc |= (ringside_connect(&anew, &options) != 0) << 5;
        ringside_close(anew);
        _exit(rc);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    OK(ringside_release(b, &message)); /* the parent goes on */
    OK(ringside_abandon(a, &loaned));
}

/* A child that lives on must not keep descriptions of the parent's: they hold the lock of its byte. */
static void client_forked_child_keeps_no_descriptor(void **state)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    int status, go[2], started[2];

    (void)state;
    skip_if_emulated("ignores madvise");
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    /* Stand in for the sidecar: lock through a descriptor that only the library has. */
    struct stat mine, theirs;
    int taken = -1;
    fstat(fake_stages[1].control_fd, &mine);
    for (int fd = 3; fd < 256 && taken < 0; fd++) {
        char path[40], target[40];

        /* By name first: other threads are closing descriptors of other kinds. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target);
        if (length < 14 || memcmp(target, "/memfd:control", 14) != 0)
            continue;
        if (fd != fake_stages[1].control_fd && fstat(fd, &theirs) == 0 &&
            theirs.st_ino == mine.st_ino && theirs.st_dev == mine.st_dev &&
            fcntl(fd, F_OFD_SETLK, &lock) == 0)
            taken = fd;
    }
    assert_true(taken >= 0);
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(started), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;

        close(go[1]);
        (void)!write(started[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(started[0], &byte, 1), 1);
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    a = b = c = NULL;
    lock.l_type = F_WRLCK;
    int rc = fcntl(fake_stages[1].control_fd, F_OFD_SETLK, &lock);
    close(go[1]);
    close(go[0]);
    close(started[1]);
    close(started[0]);
    waitpid(child, &status, 0);
    assert_int_equal(rc, 0);
}

/* How many descriptors of a stage's control file this process has. */
static int control_files(unsigned stage)
{
    struct stat control, each;
    int count = 0;

    fstat(fake_stages[stage].control_fd, &control);
    for (int fd = 0; fd < 256; fd++) {
        char path[40];

        /* By path: other threads close descriptors meanwhile. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        count += stat(path, &each) == 0 && each.st_ino == control.st_ino &&
                 each.st_dev == control.st_dev;
    }
    return count;
}

static _Atomic int fork_asked, forked, kept_by_child;

static void *fork_when_asked(void *data)
{
    const struct timespec moment = {0, 1000000};
    int status;

    while (!fork_asked)
        nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(control_files(0) - 1); /* the fake sidecar's own */
    forked = 1;
    waitpid(child, &status, 0);
    kept_by_child = status;
    return data;
}

static void fork_now(void)
{
    const struct timespec moment = {0, 1000000};

    /* The fake sidecar's, that of a, and the one that b is about to keep; not the copy that the fake sidecar sent. */
    while (control_files(0) != 3)
        nanosleep(&moment, NULL);
    fork_asked = 1;
    for (int i = 0; i < 200 && !forked; i++) /* it is not done before we are */
        nanosleep(&moment, NULL);
}

/* Nor a descriptor that was on its way from the socket to its place when the child was made. */
static void client_fork_waits_for_descriptors(void **state)
{
    pthread_t thread;

    (void)state;
    OK(send_byte(a, "1", 1));
    fork_asked = forked = 0;
    pthread_create(&thread, NULL, fork_when_asked, NULL);
    after_madvise = fork_now;
    take_byte(b, 1);
    assert_null(after_madvise);
    pthread_join(thread, NULL);
    assert_int_equal(kept_by_child, 0);
}

static void client_descriptor_polls(void **state)
{
    int fd = ringside_fd(b);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ringside_fd(b), fd);
    assert_int_equal(poll(&poll_fd, 1, 0), 1); /* the first look */
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
    OK(send_byte(a, "1", 1));
    OK(send_byte(a, "1", 2));
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    assert_int_equal(poll(&poll_fd, 1, 0), 1); /* another one is there */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
}

static int readable(struct ringside *connection)
{
    struct pollfd poll_fd = {.fd = ringside_fd(connection), .events = POLLIN};

    return poll(&poll_fd, 1, 0);
}

static void await_byte(struct ringside *connection, int value)
{
    struct pollfd poll_fd = {.fd = ringside_fd(connection), .events = POLLIN};
    int rc;

    do {
        assert_int_equal(poll(&poll_fd, 1, 20000), 1);
        rc = ringside_receive(connection, &message, 0);
    } while (rc == -RINGSIDE_ETIMEOUT);
    OK(rc);
    assert_int_equal(value_of(&message), value);
    OK(ringside_release(connection, &message));
}

static void begin_to_poll(struct ringside *connection)
{
    assert_int_equal(readable(connection), 1);
    while (ringside_receive(connection, &message, 0) == 0)
        OK(ringside_release(connection, &message));
    assert_int_equal(readable(connection), 0);
}

/* A message that this worker cannot take yet is another one's to take; this one sleeps, and looks again by itself. */
static void client_poller_leaves_what_it_cannot_take(void **state)
{
    struct ringside *other = join(1);
    bool slept = false;

    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(other, 1);
    begin_to_poll(b);
    begin_to_poll(other);
    fake_unlinked_peers = true;
    OK(send_byte(a, "1", 2));
    assert_int_equal(readable(b), 1);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(readable(other), 1);
    for (int i = 0; i < 50 && !slept; i++) { /* its pauses grow, so one of them is longer than this takes */
        slept = readable(b) == 0;
        if (!slept)
            assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    }
    assert_true(slept);
    fake_unlinked_peers = false;
    await_byte(b, 2);
    assert_int_equal(ringside_receive(other, &message, 0), -RINGSIDE_ETIMEOUT);
    OK(send_byte(a, "1", 3));
    await_byte(other, 3);
    ringside_close(other);
}

static void send_two(void)
{
    OK(send_byte(a, "1", 5));
    OK(send_byte(a, "1", 6));
}

/* Messages that come between consuming the edge and arming the event make none: who finds the first of them makes one, for
 * the other threads that poll this connection. */
static void client_poller_raises_what_it_consumed(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(b, 1);
    begin_to_poll(b);
    OK(send_byte(a, "1", 2)); /* takes the event, and nobody arms it for the next */
    take_byte(b, 2);
    after_epoll = send_two;
    take_byte(b, 5);
    assert_null(after_epoll);
    assert_int_equal(readable(b), 1);
    take_byte(b, 6);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(readable(b), 0);
}

static void *mend_later(void *data)
{
    struct timespec time = {0, 20000000};

    while (rs_load_seq_cst(&fake_stages[1].ring.shared->bell) == 0)
        nanosleep(&time, NULL);
    nanosleep(&time, NULL);
    rs_ring_bell_clear(&fake_stages[1].ring);
    assert_true(rs_inbox_mend_hints(&fake_stages[1].inbox));
    return data;
}

static void break_hints(void)
{
    rs_word *head = &fake_stages[1].inbox.shared->head;

    rs_store_relaxed(head, rs_load_relaxed(head) + 5 * 16);
}

/* Hints that make no sense are the sidecar's to mend: the caller waits for that, within its timeout. */
static void client_wrong_hints_are_waited_out(void **state)
{
    pthread_t thread;

    (void)state;
    OK(send_byte(a, "1", 1));
    break_hints();
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    pthread_create(&thread, NULL, mend_later, NULL);
    OK(ringside_receive(b, &message, 10000 * MS));
    assert_int_equal(value_of(&message), 1);
    OK(ringside_release(b, &message));
    pthread_join(thread, NULL);
    begin_to_poll(b);
    break_hints();
    OK(send_byte(a, "1", 2));
    pthread_create(&thread, NULL, mend_later, NULL);
    await_byte(b, 2);
    pthread_join(thread, NULL);
    break_hints(); /* nobody mends these */
    assert_int_equal(ringside_receive(b, &message, RINGSIDE_FOREVER), -RINGSIDE_EINTERNAL);
    assert_non_null(strstr(ringside_explain(b), "hints"));
}

static void client_comes_back_after_a_restart(void **state)
{
    int fd = ringside_fd(b);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    (void)state;
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    fake_stop(&fake_stages[1]);
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
    OK(send_byte(a, "1", 2)); /* messages need no sidecar */
    OK(ringside_release(b, &message));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    close(fake_stages[1].event_fd); /* the next sidecar has another one */
    fake_stages[1].event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    unsigned attaches = fake_stages[1].attaches;
    fake_start(&fake_stages[1]);
    for (int i = 0; i < 1000 && fake_stages[1].attaches == attaches; i++) {
        poll(&poll_fd, 1, 100);
        static struct ringside_message none;
        assert_int_equal(ringside_receive(b, &none, 0), -RINGSIDE_ETIMEOUT);
    }
    assert_int_equal(fake_stages[1].attaches, attaches + 1);
    assert_int_equal(ringside_receive(b, &message + 0, 0), -RINGSIDE_ETIMEOUT);
    OK(ringside_release(b, &message)); /* leases outlive the sidecar */
    rs_wait_arm(&fake_stages[1].inbox.shared->not_empty, RS_WAIT_EVENT);
    while (poll(&poll_fd, 1, 0) == 1)
        (void)ringside_receive(b, &message, 0);
    rs_event_write(fake_stages[1].event_fd); /* the new eventfd is watched */
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
}

static void client_new_ring_needs_a_new_connection(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    fake_stop(&fake_stages[1]);
    fake_forget_sessions = true;
    fake_start(&fake_stages[1]);
    static struct ringside_message none;
    int rc;
    do {
        rc = ringside_receive(b, &none, 50 * MS);
    } while (rc == -RINGSIDE_ETIMEOUT);
    assert_int_equal(rc, -RINGSIDE_EUNAVAILABLE);
    assert_non_null(strstr(ringside_explain(b), "connect anew"));
    OK(ringside_release(b, &message)); /* what is held can be given back */
}

static void client_truncated_body_is_reported(void **state)
{
    (void)state;
    loan_bytes(a, 4096);
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ftruncate(fake_stages[0].body_fd, 0), 0);
    volatile const uint8_t *data = message.tensors[0].data;
    assert_int_equal(data[0], 0); /* no SIGBUS */
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ECORRUPT);
    assert_non_null(strstr(last_log, "cut"));
    OK(send_byte(c, "1", 3)); /* other rings go on */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
}

static void client_connect_fails_with_a_reason(void **state)
{
    struct ringside_connect_options options = {.socket = "/nonexistent/socket", .timeout_ns = 1};
    struct ringside *connection;
    char long_path[200];

    (void)state;
    unsetenv("RINGSIDE_SOCKET");
    assert_int_equal(ringside_connect(&connection, NULL), -RINGSIDE_EINVALID);
    assert_non_null(strstr(ringside_explain(NULL), "RINGSIDE_SOCKET"));
    assert_int_equal(ringside_connect(&connection, &options), -RINGSIDE_EUNAVAILABLE);
    assert_non_null(strstr(ringside_explain(NULL), "/nonexistent/socket"));
    assert_null(connection);
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    options.socket = long_path;
    assert_int_equal(ringside_connect(&connection, &options), -ENAMETOOLONG);
    ringside_close(NULL);
    setenv("RINGSIDE_SOCKET", fake_stages[2].path, 1);
    OK(ringside_connect(&connection, NULL));
    assert_string_equal(ringside_stage(connection), "stage2");
    ringside_close(connection);
    unsetenv("RINGSIDE_SOCKET");
}

static void client_rejects_memory_that_is_not_shared(void **state)
{
    struct ringside_connect_options options = {.socket = fake_stages[2].path};
    struct ringside *connection;
    struct rs_ring real = fake_stages[2].ring;
    static uint8_t elsewhere[64 * 256];

    (void)state;
    fake_stages[2].ring.clients = (struct rs_client *)(void *)elsewhere; /* nonces go where nobody sees */
    int rc = ringside_connect(&connection, &options);
    fake_stages[2].ring.clients = real.clients;
    assert_int_equal(rc, -RINGSIDE_EDENIED);
    assert_non_null(strstr(ringside_explain(NULL), "nonce"));
}

/* ---- many threads on one connection ---- */

#define THREADS  3
#define PER_EACH 4000

static _Atomic unsigned received_count;
static _Atomic uint64_t received_sum;

static void *produce_many(void *data)
{
    static _Thread_local struct ringside_slot mine;
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT64, .rank = 1, .shape = {2}};

    for (unsigned i = 1; i <= PER_EACH; i++) {
        OK(ringside_loan(a, &tensor, 1, 0, RINGSIDE_FOREVER, &mine));
        ((uint64_t *)mine.tensors[0].data)[0] = i;
        ((uint64_t *)mine.tensors[0].data)[1] = ~(uint64_t)i;
        OK(ringside_send(a, &mine, "1", NULL));
    }
    return data;
}

static void *consume_many(void *data)
{
    static _Thread_local struct ringside_message mine;

    while (received_count < THREADS * PER_EACH) {
        int rc = ringside_receive(b, &mine, 50 * MS);

        if (rc == -RINGSIDE_ETIMEOUT)
            continue;
        OK(rc);
        const uint64_t *values = mine.tensors[0].data;
        assert_true(values[0] == ~values[1]);
        received_sum += values[0];
        received_count++;
        OK(ringside_release(b, &mine));
    }
    return data;
}

static void client_many_threads(void **state)
{
    pthread_t producers[THREADS], consumers[THREADS];

    (void)state;
    received_count = 0;
    received_sum = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&producers[i], NULL, produce_many, NULL);
        pthread_create(&consumers[i], NULL, consume_many, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(producers[i], NULL);
        pthread_join(consumers[i], NULL);
    }
    assert_int_equal(received_count, THREADS * PER_EACH);
    assert_int_equal(received_sum, (uint64_t)THREADS * PER_EACH * (PER_EACH + 1) / 2);
    assert_int_equal(fake_count(0, RS_FREE), 12);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_hands_a_message_over),
        CASE(client_hands_over_empty_and_scalar),
        CASE(client_consumer_cannot_write),
        CASE(client_last_tensor_may_shrink),
        CASE(client_refuses_what_cannot_be_loaned),
        CASE(client_spent_slots_and_messages),
        CASE(client_metadata_room),
        CASE(client_empty_inbox_times_out),
        CASE(client_no_free_slot),
        CASE(client_loan_waits_for_a_slot),
        CASE(client_draining_refuses_loans),
        CASE(client_full_inbox_is_an_error),
        CASE(client_full_inbox_drops_the_oldest),
        CASE(client_full_inbox_blocks),
        CASE(client_peer_not_connected),
        CASE(client_ring_not_admitted_yet),
        CASE(client_ring_away_hides_no_other),
        CASE(client_ring_number_means_another),
        CASE(client_ring_number_means_another_when_busy),
        CASE(client_retired_ring_is_still_read),
        CASE(client_forward_forgets_ring_numbers),
        CASE(client_send_waits_for_its_number),
        CASE(client_fan_out),
        CASE(client_nack_delivers_again),
        CASE(client_expired_is_skipped),
        CASE(client_batch),
        CASE(client_corrupt_header_is_refused),
        CASE(client_forward_in_place),
        CASE(client_forward_by_copy),
        CASE(client_close_gives_everything_back),
        CASE(client_ticket_counted_readers),
        CASE(client_ticket_counts_when_any_did),
        CASE(client_ticket_kept_until_freed),
        CASE(client_ticket_stale_beside_a_reading),
        CASE(client_ticket_errors_are_distinct),
        CASE(client_ticket_of_another_stage),
        CASE(client_ticket_without_reader_number),
        CASE(client_close_ends_readings),
        CASE(client_forked_child_is_told),
        CASE(client_forked_child_keeps_no_descriptor),
        CASE(client_fork_waits_for_descriptors),
        CASE(client_descriptor_polls),
        CASE(client_poller_leaves_what_it_cannot_take),
        CASE(client_poller_raises_what_it_consumed),
        CASE(client_wrong_hints_are_waited_out),
        CASE(client_comes_back_after_a_restart),
        CASE(client_new_ring_needs_a_new_connection),
        CASE(client_truncated_body_is_reported),
        CASE(client_connect_fails_with_a_reason),
        CASE(client_rejects_memory_that_is_not_shared),
        CASE(client_many_threads),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}

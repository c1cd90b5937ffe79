/* SPDX-License-Identifier: Apache-2.0 */
/* Stress of waking: two processes that sleep until the other has done its part, with delays of
 * random length around every look. Nobody looks again after a time here, so that a single lost
 * wake-up stands still for ever and is seen. --race: one pushes at the very moment when the other
 * falls asleep, which must find the message or be woken. */
#include <getopt.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/stress/sides.h"

#define PATIENCE 10 /* seconds without progress that are no busy machine any more */

static struct {
    unsigned rounds, slots, depth;
    bool stream, event, race;
} options = {.rounds = 100000, .slots = 1, .depth = 1};

/* Shared by both sides and the watchdog. */
static struct {
    rs_word progress; /* messages received */
    rs_word sleeps;   /* times that somebody had to wait */
    rs_word met;      /* arrivals at the meeting points of a race */
    rs_word missed;   /* sleepers of a race that neither saw the message nor were woken */
} * tally;

/* Without the bound that the library puts on a sleep. */
static void sleep_on(rs_word32 *word, uint32_t armed, int event_fd)
{
    rs_fetch_add_relaxed(&tally->sleeps, 1);
    if (event_fd < 0) {
        (void)syscall(SYS_futex, word, FUTEX_WAIT, armed, NULL, NULL, 0);
    } else {
        struct pollfd poll_fd = {.fd = event_fd, .events = POLLIN};
        uint64_t count;

        (void)poll(&poll_fd, 1, -1);
        (void)!read(event_fd, &count, sizeof count);
    }
}

/* Until `look(side)` is true. */
static void await(struct side *side, bool (*look)(struct side *side, void *data), void *data,
                  rs_word32 *word, int event_fd)
{
    while (!look(side, data)) {
        delay();
        uint32_t armed = rs_wait_arm(word, event_fd < 0 ? RS_WAIT_FUTEX : RS_WAIT_EVENT);
        delay();
        if (look(side, data))
            return;
        delay();
        sleep_on(word, armed, event_fd);
    }
}

static bool look_for_slot(struct side *side, void *loan)
{
    return rs_ring_loan(&side->ring, 1, 0, loan) == 0;
}

static bool look_for_room(struct side *other, void *data)
{
    (void)data;
    return rs_inbox_has_room(&other->inbox);
}

static bool look_for_message(struct side *side, void *lease)
{
    int unmapped;

    return rs_inbox_take(&side->inbox, lease, &unmapped) == 1;
}

static void send_one(struct side *side, struct side *other)
{
    const uint16_t destination = STAGE;
    struct rs_loan loan;

    await(side, look_for_slot, &loan, &side->ring.shared->slot_free, -1);
    await(other, look_for_room, NULL, &other->inbox.shared->not_full, -1);
    rs_ring_prepare(&side->ring, &loan, &destination, 1, 0);
    RS_REQUIRE(rs_ring_seal(&side->ring, 1, &loan, 0) == 0);
    delay();
    RS_REQUIRE(rs_inbox_push(&other->inbox, 1, loan.slot, 0) == 0);
    delay();
}

static void receive_one(struct side *side)
{
    struct rs_lease lease;

    await(side, look_for_message, &lease, &side->inbox.shared->not_empty,
          options.event ? side->event_fd : -1);
    delay();
    RS_REQUIRE(rs_ring_release(&lease) >= 0);
    rs_fetch_add_relaxed(&tally->progress, 1);
}

/* Both go on at once. */
static void meet(uint64_t *meetings)
{
    uint64_t both = 2 * ++*meetings;
    unsigned spins = 0;

    atomic_fetch_add(&tally->met, 1);
    while (rs_load_seq_cst(&tally->met) < both) {
        rs_pause();
        if (++spins % 4096 == 0)
            sched_yield();
    }
}

static void race_to_push(struct side *side, struct side *other)
{
    const uint16_t destination = STAGE;
    uint64_t meetings = 0;

    for (unsigned i = 0; i < options.rounds; i++) {
        struct rs_loan loan;

        while (!look_for_slot(side, &loan))
            rs_pause();
        rs_ring_prepare(&side->ring, &loan, &destination, 1, 0);
        RS_REQUIRE(rs_ring_seal(&side->ring, 1, &loan, 0) == 0);
        meet(&meetings);
        delay();
        RS_REQUIRE(rs_inbox_push(&other->inbox, 1, loan.slot, 0) == 0);
        meet(&meetings);
    }
}

static void race_to_sleep(struct side *side)
{
    rs_word32 *word = &side->inbox.shared->not_empty;
    uint64_t meetings = 0;

    for (unsigned i = 0; i < options.rounds; i++) {
        struct rs_lease lease;

        meet(&meetings);
        delay();
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);
        bool found = look_for_message(side, &lease);
        meet(&meetings);
        if (!found) {
            rs_fetch_add_relaxed(&tally->sleeps, 1);
            if (rs_load_seq_cst(word) == armed)
                rs_fetch_add_relaxed(&tally->missed, 1);
            RS_REQUIRE(look_for_message(side, &lease));
        }
        RS_REQUIRE(rs_ring_release(&lease) >= 0);
        rs_fetch_add_relaxed(&tally->progress, 1);
    }
}

static void run(unsigned number)
{
    struct side *side = &sides[number], *other = &sides[1 - number];

    seed = UINT64_C(0x9e3779b97f4a7c15) * (number + 1);
    map_both();
    if (options.race) {
        number == 0 ? race_to_push(side, other) : race_to_sleep(side);
        return;
    }
    for (unsigned i = 0; i < options.rounds; i++) {
        if (number == 0)
            send_one(side, other);
        if (number == 1 || !options.stream)
            receive_one(side);
        if (number == 1 && !options.stream)
            send_one(side, other);
    }
}

/* True when both ended well. */
static bool watch(const pid_t pids[2])
{
    uint64_t last = 0;
    unsigned still = 0, ended = 0;
    bool clean = true;

    for (unsigned tick = 0; ended < 2; tick++) {
        int status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            ended++;
            clean = clean && status == 0;
        }
        uint64_t now = rs_load_relaxed(&tally->progress);
        if (now != last)
            still = 0;
        else if (tick % 100 == 99 && ended < 2 && ++still >= PATIENCE) {
            printf("a wake-up was lost: nothing moved for %u s after %llu messages\n", still,
                   (unsigned long long)now);
            kill(pids[0], SIGKILL);
            kill(pids[1], SIGKILL);
            clean = false;
            still = 0;
        }
        last = now;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return clean;
}

static void parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"rounds", required_argument, NULL, 'r'},
        {"slots", required_argument, NULL, 's'},
        {"depth", required_argument, NULL, 'd'},
        {"stream", no_argument, NULL, 't'},
        {"event", no_argument, NULL, 'e'},
        {"race", no_argument, NULL, 'a'},
        {0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        unsigned value = optarg != NULL ? (unsigned)strtoul(optarg, NULL, 10) : 0;

        switch (option) {
        case 'r':
            options.rounds = value;
            break;
        case 's':
            options.slots = value;
            break;
        case 'd':
            options.depth = value;
            break;
        case 't':
            options.stream = true;
            break;
        case 'e':
            options.event = true;
            break;
        case 'a':
            options.race = true;
            break;
        default:
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    pid_t pids[2];

    parse(argc, argv);
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RS_REQUIRE(tally != MAP_FAILED);
    for (unsigned i = 0; i < 2; i++)
        make(&sides[i], i, options.slots, options.depth);
    fflush(NULL);
    int64_t start_ns = rs_now_ns();
    for (unsigned i = 0; i < 2; i++) {
        pids[i] = fork();
        RS_REQUIRE(pids[i] >= 0);
        if (pids[i] == 0) {
            run(i);
            _exit(0);
        }
    }
    bool clean = watch(pids);
    uint64_t messages = (uint64_t)options.rounds * (options.stream || options.race ? 1 : 2);
    uint64_t sleeps = rs_load_relaxed(&tally->sleeps), missed = rs_load_relaxed(&tally->missed);
    printf("%llu messages, %llu sleeps, %.1f us a message\n", (unsigned long long)messages,
           (unsigned long long)sleeps, (double)(rs_now_ns() - start_ns) / 1e3 / (double)messages);
    if (sleeps < messages / 20) { /* then this proves nothing */
        printf("almost nobody slept\n");
        clean = false;
    }
    if (missed > 0)
        printf("%llu sleepers would not have been woken\n", (unsigned long long)missed);
    return clean && missed == 0 && rs_load_relaxed(&tally->progress) == messages ? 0 : 1;
}

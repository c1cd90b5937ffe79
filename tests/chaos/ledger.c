/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's mapping, and bodies as a function of id and ticket. */
#include "tests/chaos/ledger.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct ledger *ledger_open(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDWR | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &status) < 0) {
        perror(path);
        exit(2);
    }
    void *base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    return base;
}

uint64_t ledger_id(struct ledger *ledger)
{
    uint64_t id = atomic_fetch_add(&ledger->words[LEDGER_NEXT], 1);

    return id < atomic_load(&ledger->words[LEDGER_LIMIT]) ? id : 0;
}

struct ledger_call *ledger_call(struct ledger *ledger, uint64_t id)
{
    return (struct ledger_call *)&ledger->messages[id];
}

void ledger_count(_Atomic uint8_t *counter)
{
    uint8_t value = atomic_load(counter);

    while (value < UINT8_MAX &&
           !atomic_compare_exchange_weak(counter, &value, (uint8_t)(value + 1)))
        ;
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static uint64_t word_at(uint64_t seed, uint64_t i)
{
    return mix(seed + i * UINT64_C(0x9e3779b97f4a7c15));
}

void ledger_fill(void *data, uint64_t bytes, uint64_t id, uint64_t ticket)
{
    uint64_t *words = data, seed = mix(id) ^ ticket;

    words[0] = id;
    words[1] = ticket;
    words[2] = bytes;
    for (uint64_t i = 3; i < bytes / 8; i++)
        words[i] = word_at(seed, i);
}

uint64_t ledger_check(const void *data, uint64_t bytes, uint64_t ticket, const char **why)
{
    const uint64_t *words = data;
    uint64_t id = words[0], own = words[1], seed = mix(id) ^ own;

    *why = "its length differs";
    if (bytes < 32 || words[2] != bytes)
        return 0;
    /* A copy has a ticket of the ring it was copied to; it is the other sidecar's message as far as
     * the body goes. */
    *why = "it is the body of another ticket";
    if (own >> 48 == ticket >> 48 && own != ticket)
        return 0;
    *why = "its words are not those of its id and ticket";
    for (uint64_t i = 3; i < bytes / 8; i++) {
        if (words[i] != word_at(seed, i))
            return 0;
    }
    return id;
}

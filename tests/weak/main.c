/* SPDX-License-Identifier: Apache-2.0 */
/* Runs scenarios, or the faults that must be seen, each in a process of its own. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "scenarios.h"

#define STATES      2000000
#define DEEP_STATES 40000000

struct options {
    enum weak_model model;
    uint64_t budget;
    bool deep, litmus, mutations, verbose;
    char **names; /* NULL-terminated; none: all */
};

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* In a child, because a run may crash and leaves its marks on call sites. */
static struct weak_result run(const struct options *options, const struct weak_scenario *scenario,
                              const struct weak_mutation *mutation)
{
    struct weak_result *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct weak_result result = {.failed = true, .text = "the checker crashed"};
    int status = 1;

    if (shared == MAP_FAILED)
        return result;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        weak_run(scenario, options->model, mutation, options->budget, options->verbose, shared);
        exit(0);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
        result = *shared;
    munmap(shared, sizeof *shared);
    return result;
}

static bool wanted(const struct options *options, const char *name)
{
    for (char **it = options->names; *it != NULL; it++) {
        if (strcmp(*it, name) == 0)
            return true;
    }
    return options->names[0] == NULL;
}

#define TABLES 3
static const struct weak_scenario *const tables[TABLES] = {weak_inbox_scenarios, weak_slot_scenarios,
                                                           weak_call_scenarios};

static const struct weak_scenario *find(const char *name)
{
    for (unsigned i = 0; i < TABLES; i++) {
        for (const struct weak_scenario *it = tables[i]; it->name != NULL; it++) {
            if (strcmp(it->name, name) == 0)
                return it;
        }
    }
    fprintf(stderr, "weak: there is no scenario %s\n", name);
    exit(2);
}

static bool run_scenario(const struct options *options, const struct weak_scenario *scenario)
{
    double start = seconds();
    struct weak_result result = run(options, scenario, NULL);
    const char *text = result.failed      ? result.text
                       : result.exhausted ? "not all: out of states"
                                          : "";

    /* Threads that never meet, or none that end, prove nothing. */
    if (!result.failed && (result.shared == 0 || (result.executions == 0 && !result.exhausted)))
        text = "nothing was run";
    printf("%-20s %6u %10" PRIu64 " %10" PRIu64 " %8.2f  %s\n", scenario->name, result.shared,
           result.states, result.executions, seconds() - start, text);
    return *text == '\0';
}

static unsigned run_scenarios(const struct options *options, unsigned *passed)
{
    unsigned failed = 0;

    printf("%-20s %6s %10s %10s %8s\n", "scenario", "words", "states", "executions", "seconds");
    for (unsigned i = 0; i < TABLES; i++) {
        for (const struct weak_scenario *it = tables[i]; it->name != NULL; it++) {
            if (!wanted(options, it->name) ||
                (it->deep && !options->deep && options->names[0] == NULL))
                continue;
            if (run_scenario(options, it))
                ++*passed;
            else
                failed++;
        }
    }
    return failed;
}

static unsigned run_mutations(const struct options *options, unsigned *passed)
{
    unsigned failed = 0;

    for (const struct weak_mutation *it = weak_mutations; it->name != NULL; it++) {
        if (!wanted(options, it->name) && !wanted(options, it->scenario))
            continue;
        struct weak_result result = run(options, find(it->scenario), it);
        bool good = result.failed == (it->holds == NULL) && (result.failed || !result.exhausted) &&
                    result.mutated;

        printf("%-4s %-34s %-20s %s\n", good ? "" : "BAD", it->name, it->scenario,
               !result.mutated     ? "there is no such access"
               : result.failed     ? result.text
               : it->holds != NULL ? it->holds
                                   : "not seen");
        if (good)
            ++*passed;
        else
            failed++;
    }
    return failed;
}

static unsigned run_litmus(const struct options *options, unsigned *passed)
{
    unsigned failed = 0;

    for (const struct weak_litmus *it = weak_litmus; it->scenario.name != NULL; it++) {
        if (!wanted(options, it->scenario.name))
            continue;
        struct weak_result result = run(options, &it->scenario, NULL);
        bool good = result.failed == it->allowed && result.shared > 0 && !result.exhausted;

        printf("%-4s %-20s %s\n", good ? "" : "BAD", it->scenario.name,
               result.failed ? result.text : "never");
        if (good)
            ++*passed;
        else
            failed++;
    }
    return failed;
}

static int usage(void)
{
    fprintf(stderr, "Usage: weak [--deep] [--litmus | --mutations] [--model c20|c17|sc] [--states "
                    "N] [--verbose] [NAME...]\n"
                    "  --deep        the large scenarios as well, and more states\n"
                    "  --litmus      what the machine itself allows\n"
                    "  --mutations   the faults that must be seen instead; NAME is one of them, or "
                    "of a scenario\n"
                    "  --model       c20 (default); c17, the older and weaker rule of seq_cst; sc, "
                    "no weak memory at all\n"
                    "  --states N    give up a scenario after so many partial executions\n"
                    "  --verbose     print the interleaving of what is found\n");
    return 2;
}

static bool parse(struct options *options, int argc, char **argv)
{
    static const char *const models[] = {"c20", "c17", "sc"};
    int i = 1;

    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--deep") == 0) {
            options->deep = true;
            options->budget = DEEP_STATES;
        } else if (strcmp(argv[i], "--mutations") == 0) {
            options->mutations = true;
        } else if (strcmp(argv[i], "--litmus") == 0) {
            options->litmus = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            options->verbose = true;
        } else if (strcmp(argv[i], "--states") == 0 && i + 1 < argc) {
            options->budget = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) {
            unsigned model = 0;

            for (i++; model < 3 && strcmp(argv[i], models[model]) != 0; model++)
                ;
            options->model = (enum weak_model)model;
            if (model == 3)
                return false;
        } else {
            return false;
        }
    }
    options->names = argv + i;
    return options->budget > 0;
}

int main(int argc, char **argv)
{
    struct options options = {.model = WEAK_C20, .budget = STATES};
    unsigned passed = 0;

    if (!parse(&options, argc, argv))
        return usage();
    options.verbose |= !options.mutations && !options.litmus;
    unsigned failed = (options.litmus      ? run_litmus
                       : options.mutations ? run_mutations
                                           : run_scenarios)(&options, &passed);
    printf("[  PASSED  ] %u test(s).\n", passed);
    if (failed > 0)
        printf("[  FAILED  ] %u test(s)\n", failed);
    return failed > 0 || passed == 0;
}

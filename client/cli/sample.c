/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles by sorting: every value counts, no buckets. */
#include "client/cli/sample.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/cli/output.h"

static const struct {
    const char *name;
    double percent;
} shown[] = {{"min", 0}, {"p50", 50}, {"p99", 99}, {"max", 100}};

#define SHOWN (sizeof shown / sizeof shown[0])

void sample_reserve(struct sample *sample, size_t count)
{
    if (sample->room - sample->count >= count)
        return;
    sample->room = sample->count + count;
    sample->values_ns =
        output_need(reallocarray(sample->values_ns, sample->room, sizeof *sample->values_ns));
}

void sample_add(struct sample *sample, uint64_t value_ns)
{
    if (sample->count == sample->room)
        sample_reserve(sample, sample->room > 0 ? sample->room : 256);
    sample->values_ns[sample->count++] = value_ns;
    sample->sorted = false;
}

void sample_finish(struct sample *sample)
{
    if (sample == NULL)
        return;
    free(sample->values_ns);
    *sample = (struct sample){0};
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

uint64_t sample_percentile(struct sample *sample, double percent)
{
    if (sample->count == 0)
        return 0;
    if (!sample->sorted)
        qsort(sample->values_ns, sample->count, sizeof *sample->values_ns, compare);
    sample->sorted = true;
    double rank = percent / 100 * (double)sample->count;
    size_t index = (size_t)rank;
    if (index > 0 && (double)index >= rank)
        index--;
    return sample->values_ns[index < sample->count ? index : sample->count - 1];
}

void sample_print(struct sample *sample)
{
    char text[OUTPUT_NUMBER_BYTES];

    for (size_t i = 0; i < SHOWN; i++)
        printf("%s%s %s", i > 0 ? ", " : "", shown[i].name,
               output_duration(text, sample_percentile(sample, shown[i].percent)));
}

json_t *sample_json(struct sample *sample)
{
    json_t *object = output_need(json_object());
    char name[16];

    for (size_t i = 0; i < SHOWN && sample->count > 0; i++) {
        snprintf(name, sizeof name, "%s_ns", shown[i].name);
        uint64_t value_ns = sample_percentile(sample, shown[i].percent);
        json_object_set_new(object, name, json_integer((json_int_t)value_ns));
    }
    return object;
}

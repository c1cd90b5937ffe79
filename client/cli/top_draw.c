/* SPDX-License-Identifier: Apache-2.0 */
/* What is not known is "-" in the tables and null in JSON. */
#include "client/cli/top_draw.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/output.h"

#define COLUMNS_OF(list) (sizeof(list) / sizeof(list)[0])
#define TEXT_BYTES       192

static const struct table_column stage_columns[] = {
    {"STAGE", false, true},      {"STATE", false, true}, {"SENT/s", true, false},
    {"RECV/s", true, false},     {"MB/s", true, false},  {"INBOX", true, false},
    {"QUEUED p50", true, false}, {"p99", true, false},   {"HAND-OFF", true, false},
};

static const struct table_column class_columns[] = {
    {"STAGE", false, true}, {"SLOTS OF", true, false}, {"ALL", true, false},
    {"FREE", true, false},  {"LOANED", true, false},   {"SEALED", true, false},
    {"QUAR", true, false},  {"OLDEST", true, false},   {"HOLDER", false, true},
};

static const struct table_column holder_columns[] = {
    {"OLDEST", true, false}, {"STATE", false, false}, {"HOLDER", false, true},
    {"STAGE", false, true},  {"SIZE", true, false},   {"TICKET", false, false},
};

static const char *name_of(const struct top_stage *stage)
{
    return stage->stage[0] != '\0' ? stage->stage : stage->socket;
}

static void add_rate(struct table *table, const struct top_stage *stage, double rate)
{
    if (!stage->has_rates)
        table_text(table, "-");
    else if (rate < 10)
        table_format(table, "%.1f", rate);
    else
        table_count(table, (uint64_t)(rate + 0.5));
}

static void add_percentile(struct table *table, struct top_stage *stage, double percent)
{
    if (stage->queued.count > 0 && stage->error[0] == '\0')
        table_duration(table, sample_percentile(&stage->queued, percent));
    else
        table_text(table, "-");
}

/* In whole, whatever the width. */
static void draw_note(FILE *file, const struct top_stage *stage, const char *note, size_t columns)
{
    char text[TEXT_BYTES + TOP_TEXT_BYTES];

    snprintf(text, sizeof text, "%.64s: %s", name_of(stage), note);
    char *safe = output_escape(text);
    output_paragraph(file, "", safe, 0, columns);
    free(safe);
}

static void draw_stages(FILE *file, struct top_stage *stages, size_t count, size_t columns)
{
    struct table table;

    table_init(&table, stage_columns, COLUMNS_OF(stage_columns));
    for (size_t i = 0; i < count; i++) {
        struct top_stage *stage = &stages[i];
        bool away = stage->error[0] != '\0';
        table_text(&table, name_of(stage));
        table_text(&table, away ? "no answer" : stage->state);
        add_rate(&table, stage, stage->sent_rate);
        add_rate(&table, stage, stage->received_rate);
        add_rate(&table, stage, stage->byte_rate / 1e6);
        if (away)
            table_text(&table, "-");
        else
            table_format(&table, "%" PRIu32 "/%" PRIu32, stage->inbox_depth, stage->inbox_limit);
        add_percentile(&table, stage, 50);
        add_percentile(&table, stage, 99);
        table_text(&table, "-");
    }
    table_print(&table, file, columns);
    table_finish(&table);
    for (size_t i = 0; i < count; i++) {
        if (stages[i].error[0] != '\0')
            draw_note(file, &stages[i], stages[i].error, columns);
    }
}

static void add_class(struct table *table, const struct top_stage *stage,
                      const struct top_class *class, bool first)
{
    const uint32_t counts[] = {class->slots, class->free, class->loaned, class->sealed,
                               class->quarantined};
    char text[TEXT_BYTES];

    table_text(table, first ? name_of(stage) : "");
    table_bytes(table, class->slot_bytes);
    for (size_t i = 0; i < COLUMNS_OF(counts); i++)
        table_count(table, counts[i]);
    if (class->oldest.state[0] == '\0') {
        table_text(table, "-");
        table_text(table, "");
        return;
    }
    table_duration(table, class->oldest.age_ns);
    snprintf(text, sizeof text, "%s %s", class->oldest.client, class->oldest.state);
    table_text(table, text);
}

static void draw_classes(FILE *file, const struct top_stage *stages, size_t count, size_t columns)
{
    struct table table;

    table_init(&table, class_columns, COLUMNS_OF(class_columns));
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < stages[i].class_count && stages[i].error[0] == '\0'; k++)
            add_class(&table, &stages[i], &stages[i].classes[k], k == 0);
    }
    if (table.cell_count > 0) {
        fputc('\n', file);
        table_print(&table, file, columns);
    }
    table_finish(&table);
}

/* The oldest of all stages' holders that are not drawn yet; each stage's are in order. */
static const struct top_holder *next_holder(const struct top_stage *stages, size_t count,
                                            size_t *drawn, size_t *stage)
{
    const struct top_holder *oldest = NULL;

    for (size_t i = 0; i < count; i++) {
        if (stages[i].error[0] != '\0' || drawn[i] == stages[i].holder_count)
            continue;
        const struct top_holder *holder = &stages[i].holders[drawn[i]];
        if (oldest == NULL || holder->age_ns > oldest->age_ns) {
            oldest = holder;
            *stage = i;
        }
    }
    if (oldest != NULL)
        drawn[*stage]++;
    return oldest;
}

static void draw_holders(FILE *file, const struct top_stage *stages, size_t count, size_t columns,
                         size_t most)
{
    size_t *drawn = output_need(calloc(count, sizeof *drawn)), stage = 0;
    const struct top_holder *holder;
    struct table table;

    table_init(&table, holder_columns, COLUMNS_OF(holder_columns));
    for (size_t i = 0; i < most && (holder = next_holder(stages, count, drawn, &stage)) != NULL;
         i++) {
        table_duration(&table, holder->age_ns);
        table_text(&table, holder->state);
        table_text(&table, holder->client);
        table_text(&table, name_of(&stages[stage]));
        table_bytes(&table, holder->bytes);
        table_text(&table, holder->ticket);
    }
    if (table.cell_count > 0) {
        fputc('\n', file);
        table_print(&table, file, columns);
    }
    for (size_t i = 0; i < count; i++) {
        if (stages[i].error[0] == '\0' && stages[i].partial)
            draw_note(file, &stages[i], "more slots in use than are looked at; ringside ls has all",
                      columns);
    }
    table_finish(&table);
    free(drawn);
}

void top_draw(FILE *file, struct top_stage *stages, size_t count, size_t columns, size_t holders)
{
    draw_stages(file, stages, count, columns);
    draw_classes(file, stages, count, columns);
    draw_holders(file, stages, count, columns, holders);
}

/* ---- JSON ---- */

static json_t *text_or_null(const char *text)
{
    json_t *value = text[0] != '\0' ? json_string(text) : json_null();

    return value != NULL ? value : json_null();
}

static json_t *rate_json(const struct top_stage *stage, double rate)
{
    return stage->has_rates ? json_real(rate) : json_null();
}

static json_t *holder_json(const struct top_holder *holder)
{
    if (holder->state[0] == '\0')
        return json_null();
    return json_pack("{s:s, s:o, s:I, s:I, s:o}", "state", holder->state, "client",
                     text_or_null(holder->client), "age_ns", (json_int_t)holder->age_ns, "bytes",
                     (json_int_t)holder->bytes, "text", text_or_null(holder->ticket));
}

static json_t *classes_json(const struct top_stage *stage)
{
    json_t *classes = output_need(json_array());

    for (size_t i = 0; i < stage->class_count; i++) {
        const struct top_class *class = &stage->classes[i];
        json_t *object = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "slot_bytes", (json_int_t) class->slot_bytes,
            "slots", (json_int_t) class->slots, "free", (json_int_t) class->free, "loaned",
            (json_int_t) class->loaned, "sealed", (json_int_t) class->sealed, "quarantined",
            (json_int_t) class->quarantined, "oldest", holder_json(&class->oldest));
        json_array_append_new(classes, output_need(object));
    }
    return classes;
}

static json_t *stage_json(struct top_stage *stage)
{
    json_t *object = output_need(json_object());

    json_object_set_new(object, "socket", text_or_null(stage->socket));
    json_object_set_new(object, "error", text_or_null(stage->error));
    if (stage->error[0] != '\0')
        return object;
    json_object_set_new(object, "stage", text_or_null(stage->stage));
    json_object_set_new(object, "state", text_or_null(stage->state));
    json_object_set_new(object, "sent_per_s", rate_json(stage, stage->sent_rate));
    json_object_set_new(object, "received_per_s", rate_json(stage, stage->received_rate));
    json_object_set_new(object, "sent_bytes_per_s", rate_json(stage, stage->byte_rate));
    json_object_set_new(object, "inbox_depth", json_integer(stage->inbox_depth));
    json_object_set_new(object, "inbox_limit", json_integer(stage->inbox_limit));
    json_object_set_new(object, "clients", json_integer(stage->clients));
    json_t *queued = sample_json(&stage->queued);
    json_object_set_new(queued, "seen", json_integer((json_int_t)stage->queued.count));
    json_object_set_new(object, "queued", queued);
    json_object_set_new(object, "hand_off", json_null());
    json_object_set_new(object, "classes", classes_json(stage));
    json_object_set_new(object, "holders", json_integer((json_int_t)stage->holder_count));
    json_object_set_new(object, "partial", json_boolean(stage->partial));
    return object;
}

json_t *top_json(struct top_stage *stages, size_t count)
{
    json_t *list = output_need(json_array());

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, stage_json(&stages[i]));
    return output_need(json_pack("{s:o}", "stages", list));
}

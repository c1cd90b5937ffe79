/* SPDX-License-Identifier: Apache-2.0 */
/* By ticket: read, free, the text form, and a reading that travels in a pickle. */
#include "client/python/ringside/core.h"

static PyObject *read_ticket(struct core_connection *connection, PyObject *value, bool added)
{
    struct core_lease *message;
    struct core_ticket ticket;
    union core_box *box;
    int rc;

    if (core_usable(connection) < 0 || core_ticket(connection->state, value, &ticket) < 0)
        return NULL;
    box = core_box_take(connection);
    if (!box) {
        core_ticket_finish(&ticket);
        return NULL;
    }
    if (!ticket.text)
        rc = ringside_read(connection->ringside, ticket.number, &box->message);
    else if (added)
        rc = ringside_read_added_text(connection->ringside, ticket.text, &box->message);
    else
        rc = ringside_read_text(connection->ringside, ticket.text, &box->message);
    core_ticket_finish(&ticket);
    if (rc < 0) {
        core_box_give(connection, box);
        core_raise(connection->state, connection->ringside, rc);
        return NULL;
    }
    message = core_lease_create(connection, connection->state->message_type, box);
    if (message)
        message->is_reading = true;
    return (PyObject *)message;
}

PyObject *core_connection_read(PyObject *self, PyObject *ticket)
{
    return read_ticket((struct core_connection *)self, ticket, false);
}

/* The other end of a pickle. */
PyObject *core_connection_read_added(PyObject *self, PyObject *ticket)
{
    return read_ticket((struct core_connection *)self, ticket, true);
}

PyObject *core_connection_free(PyObject *self, PyObject *value)
{
    struct core_connection *connection = (struct core_connection *)self;
    struct core_ticket ticket;
    int rc;

    if (core_usable(connection) < 0 || core_ticket(connection->state, value, &ticket) < 0)
        return NULL;
    rc = ticket.text ? ringside_free_text(connection->ringside, ticket.text)
                     : ringside_free(connection->ringside, ticket.number);
    core_ticket_finish(&ticket);
    if (rc < 0) {
        core_raise(connection->state, connection->ringside, rc);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ticket_text(struct core_connection *connection, uint64_t number)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    int rc = ringside_ticket_text(connection->ringside, number, text);

    if (rc >= 0)
        return PyUnicode_FromString(text);
    core_raise(connection->state, connection->ringside, rc);
    return NULL;
}

PyObject *core_connection_ticket_text(PyObject *self, PyObject *value)
{
    struct core_connection *connection = (struct core_connection *)self;
    struct core_ticket ticket;
    PyObject *text;

    if (core_usable(connection) < 0 || core_ticket(connection->state, value, &ticket) < 0)
        return NULL;
    if (!ticket.text)
        return ticket_text(connection, ticket.number);
    text = ticket.owner;
    Py_INCREF(text);
    core_ticket_finish(&ticket);
    return text;
}

/* What is read by ticket is pickled as its ticket with one read more, which the other process takes
 * over. */
PyObject *core_message_pickle(PyObject *self, PyObject *ignored)
{
    struct core_lease *message = (struct core_lease *)self;
    struct core_connection *connection = message->connection;
    PyObject *text, *unpickle;
    int rc;

    if (!message->is_reading)
        return core_lease_no_pickle(self, ignored);
    if (core_lease_held(message) < 0)
        return NULL;
    text = ticket_text(connection, message->box->message.ticket);
    unpickle = text ? PyObject_GetAttrString(connection->state->support, "unpickle_message") : NULL;
    if (!unpickle) {
        Py_XDECREF(text);
        return NULL;
    }
    rc = ringside_add_readers(connection->ringside, &message->box->message, 1);
    if (rc < 0) {
        core_raise(connection->state, connection->ringside, rc);
        Py_DECREF(unpickle);
        Py_DECREF(text);
        return NULL;
    }
    return Py_BuildValue("(N(NO))", unpickle, text, connection->socket);
}

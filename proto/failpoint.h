/* SPDX-License-Identifier: Apache-2.0 */
/* Places at which a test lets a process die: before and after each atomic step. Nothing of it is in
 * an ordinary build. */
#ifndef RINGSIDE_PROTO_FAILPOINT_H
#define RINGSIDE_PROTO_FAILPOINT_H

#ifdef RINGSIDE_FAILPOINTS

/* Every point of the tree, by what it stands before or after. "before" is right before the step,
 * "after" right after. */
/* clang-format off */
#define RS_FAILPOINTS(X)                                                                           \
    /* loan.c */                                                                                   \
    X(loan_before) X(loan_after) X(abandon_before) X(abandon_after) X(prepare_words)               \
    X(prepare_readers) X(seal_before) X(seal_after) X(free_bit) X(free_summary)                    \
    /* ring.c */                                                                                   \
    X(take_before) X(take_after) X(release_before) X(release_after) X(nack_before) X(nack_after)   \
    X(forward_word_before) X(forward_word_after) X(forward_own_before) X(forward_own_after)        \
    X(expire_before) X(expire_after) X(free_before) X(free_after) X(bell_rung)                     \
    /* readers.c */                                                                                \
    X(retire_before) X(read_begin_before) X(read_begin_after) X(read_undo) X(read_end_before)      \
    X(read_end_after) X(ticket_free_begun) X(readers_add_before) X(readers_add_after)               \
    X(read_retire_before) X(read_retire_after)                                                     \
    /* inbox.c */                                                                                  \
    X(push_before) X(push_after) X(push_tail) X(push_stale) X(push_stale_cleared)                  \
    X(overflow_before) X(overflow_set) X(overflow_clear_before) X(overflow_clear_after)            \
    X(clear_before) X(clear_after) X(clear_head) X(drop_before) X(drop_after) X(drop_cleared)      \
    X(hints_cells_cleared) X(hints_head) X(hints_tail)                                             \
    /* box.c */                                                                                    \
    X(post_before) X(post_after) X(reply_sealed) X(take_back_before) X(take_back_after)            \
    X(box_take_before) X(box_take_after) X(cancel_before) X(cancel_after)                                             \
    /* wait.c */                                                                                   \
    X(wait_armed) X(wake_before) X(wake_cleared) X(wake_all)                                       \
    /* repair.c */                                                                                 \
    X(sweep_delivery_before) X(sweep_delivery_after) X(sweep_reader) X(audit_push_before)          \
    X(audit_push_after) X(quarantine_before) X(quarantine_after) X(adopt_before) X(adopt_epoch)    \
    X(adopt_hints) X(adopt_readers)                                                                \
    /* proxy/ */                                                                                   \
    X(admit_locked) X(admit_alive) X(admit_again) X(attach_replied) X(client_dying)                \
    X(client_dead) X(client_swept) X(count_noted) X(count_added) X(count_zeroed)                   \
    X(client_counted) X(client_unused) X(client_adopted)                                           \
    X(mend_bell_cleared) X(mend_swept) X(mend_audited) X(link_mapped) X(link_connected)            \
    X(peer_hello_answered) X(peer_admit_replied) X(peer_known_before) X(peer_known)                \
    X(peer_unused) X(session_published) X(session_copied) X(box_cleared) X(session_called)         \
    X(session_cancelled) X(session_reply_given) X(session_replied)                                 \
    /* client/c/ */                                                                                \
    X(attach_answered) X(attached) X(attached_again) X(send_stored) X(send_published)              \
    X(receive_taken) X(receive_expired) X(forward_pushed) X(forward_copied) X(ring_opened)         \
    X(outlet_opened) X(close_returned) X(replied) X(reply_taken) X(answerer_opened)
/* clang-format on */

enum rs_failpoint {
#define RS_FAILPOINT_NAME(name) RS_FAILPOINT_##name,
    RS_FAILPOINTS(RS_FAILPOINT_NAME)
#undef RS_FAILPOINT_NAME
    RS_FAILPOINT_COUNT
};

/*
 * Counts a hit of the point in the file named by RINGSIDE_FAILPOINT_LOG (made when it is not
 * there), and acts when the point is armed: by RINGSIDE_FAILPOINT=name[:nth][:kill|stop|exit], or
 * by whoever writes the file's first word while the process runs. Any thread.
 *
 *   word 0      action << 48 | (index of the point + 1) << 32 | hits left; 0: not armed, or acted
 *   word 1 + i  hits of point i
 */
void rs_failpoint(enum rs_failpoint point);
/* NULL past the last. */
const char *rs_failpoint_name(unsigned point);

enum rs_failpoint_action { RS_FAILPOINT_KILL = 1, RS_FAILPOINT_STOP = 2, RS_FAILPOINT_EXIT = 3 };

#define RS_FAILPOINT(name) rs_failpoint(RS_FAILPOINT_##name)

#else

#define RS_FAILPOINT(name) ((void)0)

#endif

#endif

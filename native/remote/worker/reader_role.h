/*
 * The role of the thread that reads commands. One thread at a time has it: it reads and executes one command
 * after another, which keeps their order. Around a call that may wait the thread offers the role. While threads
 * of the program alternate, another thread takes the offer at once. If all commands come from one thread, that
 * thread waits for the answer anyway and the offer is left open, but after some hundred microseconds it is
 * given to another thread nevertheless.
 */
#ifndef CALABASH_REMOTE_WORKER_READER_ROLE_H
#define CALABASH_REMOTE_WORKER_READER_ROLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * `serve` is run by every further thread, which has the role when it begins. Called by the first thread, which
 * has the role now.
 */
void cb_reader_role_begin(void *(*serve)(void *));
/*
 * Wait for the role. Return false if enough threads wait for it and the caller should end; with `stay` never.
 */
bool cb_reader_role_take(bool stay);
/* Note a command of that thread of the program. */
void cb_reader_role_command(uint16_t thread);
/* Offer the role; return the value for cb_reader_role_returned(). */
uint64_t cb_reader_role_offer(void);
/* Return true if the caller still has the role. */
bool cb_reader_role_returned(uint64_t offer);
/* Return true if other threads are in calls that wait. */
bool cb_reader_role_others_wait(void);

#endif

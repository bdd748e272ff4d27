/*
 * Who reads commands. One thread at a time has that role: it reads and carries out one command after another, which keeps
 * their order. Around a call that may wait it offers the role. While threads of the program take turns, another thread
 * takes it at once; when all commands are of one thread nobody does, for that thread waits for the answer, except that
 * after some hundred microseconds it is passed on all the same.
 */
#ifndef CALABASH_REMOTE_WORKER_ROLE_H
#define CALABASH_REMOTE_WORKER_ROLE_H

#include <stdbool.h>
#include <stdint.h>

/* `serve` is run by every further thread, which has the role when it begins. Called by the first one, which has it now. */
void cb_role_begin(void *(*serve)(void *));
/* Wait for the role. False: enough threads wait for it, and the caller is to end, unless it is to stay. */
bool cb_role_take(bool stay);
/* A command of that thread of the program. */
void cb_role_command(uint16_t thread);
/* What cb_role_returned is to get. */
uint64_t cb_role_offer(void);
/* Whether the caller still has it. */
bool cb_role_returned(uint64_t offer);
/* Whether other threads are in calls that wait. */
bool cb_role_others_wait(void);

#endif

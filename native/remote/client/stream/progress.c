#include "remote/client/stream/progress.h"

void (*cb_progress_expects)(int more);

static pthread_mutex_t progress_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t progress_age = 1;
static int pending_count;

static void progress_store(struct cb_progress *p, uint32_t seq, enum cb_progress_state state)
{
    int more = (state == CB_PROGRESS_PENDING) - (p->state == CB_PROGRESS_PENDING);
    p->seq = seq;
    p->age = progress_age;
    __atomic_store_n(&p->state, (uint8_t)state, __ATOMIC_RELEASE);
    pending_count += more;
    if (more && pending_count == (more > 0) && cb_progress_expects) cb_progress_expects(more);
}

void cb_progress_set(struct cb_progress *p, uint32_t seq, enum cb_progress_state state)
{
    pthread_mutex_lock(&progress_lock);
    progress_store(p, seq, state);
    pthread_mutex_unlock(&progress_lock);
}

void cb_progress_settle(struct cb_progress *p, uint32_t seq, enum cb_progress_state state, bool if_pending)
{
    pthread_mutex_lock(&progress_lock);
    bool waits = p->state == CB_PROGRESS_ASKED || (if_pending && p->state == CB_PROGRESS_PENDING);
    if (waits && p->seq == seq) progress_store(p, seq, state);
    pthread_mutex_unlock(&progress_lock);
}

enum cb_progress_state cb_progress_of(const struct cb_progress *p)
{
    if (p->elsewhere || p->age != __atomic_load_n(&progress_age, __ATOMIC_ACQUIRE))
        return CB_PROGRESS_UNKNOWN;
    return (enum cb_progress_state)__atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
}

void cb_progress_invalidate(void)
{
    __atomic_fetch_add(&progress_age, 1, __ATOMIC_ACQ_REL);
}

void cb_progress_after_fork(void)
{
    pthread_mutex_init(&progress_lock, NULL);
    pending_count = 0;
}

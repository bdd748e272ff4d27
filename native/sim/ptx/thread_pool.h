/* Pool of threads that execute launches: as many as the process has processors, started when first needed. */
#ifndef CALABASH_SIM_PTX_THREAD_POOL_H
#define CALABASH_SIM_PTX_THREAD_POOL_H

/* Run `work` of `job` in this thread; return when the threads that help have left it too. */
void thread_pool_run(void *job, void (*work)(void *job));
/* Called from within `work`: let idle threads run it too. No effect after the first call. */
void thread_pool_request_help(void *job);

#endif

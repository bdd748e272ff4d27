/* Log files of the service: one line for each event, stamped as the real ones. */
#ifndef CALABASH_SIM_MPS_LOG_H
#define CALABASH_SIM_MPS_LOG_H

/*
 * Log to `file` in CUDA_MPS_LOG_DIRECTORY as "Control" or "Server"; nothing is logged if the directory cannot
 * be written.
 */
void log_open(const char *file, const char *who);

void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

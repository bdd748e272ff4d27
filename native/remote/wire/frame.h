/*
 * Frames that travel between a program and its worker. Both ends write little-endian words of 8 bytes; a frame
 * is a header and a payload of whole words. Commands travel one way in the order in which the program gave
 * them; answers, in the order of their questions, and notices travel the other way.
 */
#ifndef CALABASH_REMOTE_FRAME_H
#define CALABASH_REMOTE_FRAME_H

#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "both ends write little-endian words");

struct cb_frame {
    uint16_t op;      /* enum cb_op, or enum cb_notice from the worker */
    uint16_t context; /* number of the calling thread's current context; 0: none */
    uint32_t bytes;   /* of the payload, a multiple of 8 */
    uint32_t seq;     /* of a command; in an answer: of the command that is answered */
    uint16_t thread;  /* the calling thread, for its per-thread default stream */
    uint16_t flags;   /* enum cb_frame_flag */
};
_Static_assert(sizeof(struct cb_frame) == 16, "a header is two words");

enum cb_frame_flag {
    CB_FRAME_PART = 1,  /* more of this answer follows */
    CB_FRAME_ASKED = 2, /* the program waits for the answer of a command that otherwise has none */
    CB_FRAME_KEPT = 4,  /* of a notice: more of its kind may follow, because a graph keeps the object */
};

enum cb_notice {
    CB_ANSWER = 1, /* a word of result, then the outputs of the call */
    CB_FAILED,     /* a command without an answer has failed: a word of result */
    CB_DATA,       /* data of an asynchronous copy to the program: result, offset, bytes */
    CB_HOST,       /* a function of the program is to run: result, its number, the number of this run */
    CB_DESTROY,    /* the last reference to a user object was released: result, its number */
    CB_DONE,       /* an event or a stream has completed up to that command: result, which; a failure: ask */
    CB_OUTPUT,     /* kernels have printed: result, bytes, the text */
    CB_NOTICE_COUNT,
};

/* Answer to a query of an event or a stream. */
enum cb_is_done { CB_IS_NOT_DONE, CB_IS_DONE, CB_WILL_BE_TOLD };

/* Purpose of a session. */
enum cb_purpose { CB_FOR_CUDA, CB_FOR_NVML };

#define CB_WIRE_MAGIC   0x48534142414c4143ull /* "CALABASH" */
#define CB_WIRE_VERSION 2u
#define CB_COMMAND_MAX  (40u << 10) /* payload of a command without bulk data */
#define CB_BULK_MAX     (4u << 20)  /* bulk data of one frame */
#define CB_ANSWER_MAX   (1u << 20)  /* payload of an answer that is not bulk data */
#define CB_STRING_MAX   4096u
#define CB_WORDS(bytes) (((bytes) + 7u) & ~(uint64_t)7u)

#endif

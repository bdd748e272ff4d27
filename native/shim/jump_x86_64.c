/* Trampolines of dl.c for x86-64: call the filter, then return its answer or jump to the real function. */
#ifdef __x86_64__
#define _GNU_SOURCE
#include "shim/dlreal.h"

#include <dlfcn.h>
#include <stddef.h>

/* clang-format off */
__asm__(
    ".text\n"
    ".globl dlsym\n.type dlsym,@function\n"
    "dlsym:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
    "    push %rsi\n    .cfi_adjust_cfa_offset 8\n"
    "    sub $8, %rsp\n    .cfi_adjust_cfa_offset 8\n"
    "    call cb_filter_symbol\n"
    "    add $8, %rsp\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rsi\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
    "    test %rax, %rax\n"
    "    jz 1f\n"
    "    ret\n"
    "1:  jmp *cb_dl(%rip)\n"
    "    .cfi_endproc\n"
    ".size dlsym,.-dlsym\n"

    ".globl dlvsym\n.type dlvsym,@function\n"
    "dlvsym:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
    "    push %rsi\n    .cfi_adjust_cfa_offset 8\n"
    "    push %rdx\n    .cfi_adjust_cfa_offset 8\n"
    "    call cb_filter_version\n"
    "    pop %rdx\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rsi\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
    "    test %rax, %rax\n"
    "    jz 1f\n"
    "    ret\n"
    "1:  jmp *cb_dl+8(%rip)\n"
    "    .cfi_endproc\n"
    ".size dlvsym,.-dlvsym\n"

    ".globl dlopen\n.type dlopen,@function\n"
    "dlopen:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
    "    sub $16, %rsp\n    .cfi_adjust_cfa_offset 16\n"
    "    call cb_filter_open\n"
    "    add $16, %rsp\n    .cfi_adjust_cfa_offset -16\n"
    "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
    "    mov %eax, %esi\n"
    "    jmp *cb_dl+16(%rip)\n"
    "    .cfi_endproc\n"
    ".size dlopen,.-dlopen\n"

    ".globl dlmopen\n.type dlmopen,@function\n"
    "dlmopen:\n"
    "    .cfi_startproc\n"
    "    endbr64\n"
    "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
    "    push %rsi\n    .cfi_adjust_cfa_offset 8\n"
    "    push %rdx\n    .cfi_adjust_cfa_offset 8\n"
    "    call cb_open_elsewhere\n"
    "    pop %rdx\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rsi\n    .cfi_adjust_cfa_offset -8\n"
    "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
    "    test %rax, %rax\n"
    "    jz 1f\n"
    /* RTLD_DEEPBIND */
    "    ret\n" "1:  and $~8, %edx\n"
    "    jmp *cb_dl+24(%rip)\n"
    "    .cfi_endproc\n"
    ".size dlmopen,.-dlmopen\n"
);
/* clang-format on */

_Static_assert(RTLD_DEEPBIND == 8, "the trampoline of dlmopen clears this bit");
_Static_assert(offsetof(struct cb_dl, dlmopen) == 24, "the trampolines jump through these offsets");
#endif

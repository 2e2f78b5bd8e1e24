/*
 * System calls without libc: no errno, no TLS, no cancellation points.
 *
 * For the moment between clone3(CLONE_VM) and execve, when two processes share one memory: libc's
 * wrappers would write the other one's errno. syscall(2) lists the calling conventions. The result
 * is the kernel's: negative errno on failure.
 */
#pragma once

#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long sp_raw6(long nr, long a, long b, long c, long d, long e, long f)
{
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}

/* clone3(2) with CLONE_VM and a stack in args: the child calls fn(arg) there, which must not
 * return. */
static inline long sp_raw_clone3(void *args, unsigned long size, void (*fn)(void *), void *arg)
{
    long ret;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[arg], %%rdi\n\t"
                     "call *%[fn]\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(ret)
                     : "a"((long)SYS_clone3), "D"(args), "S"(size), [fn] "r"(fn), [arg] "r"(arg)
                     : "rcx", "r11", "memory");
    return ret;
}
#elif defined(__aarch64__)
static inline long sp_raw6(long nr, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

static inline long sp_raw_clone3(void *args, unsigned long size, void (*fn)(void *), void *arg)
{
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = (long)size;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x0, %[arg]\n\t"
                     "blr %[fn]\n\t"
                     "brk 1\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), [fn] "r"(fn), [arg] "r"(arg)
                     : "x30", "memory");
    return x0;
}
#else
#error "os/raw_syscall.h: add this architecture"
#endif

/* Any mix of integers and pointers as arguments; missing ones are 0. */
#define SP_RAW_PICK(nr, a, b, c, d, e, f, ...)                                                     \
    sp_raw6((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define sp_raw(...) SP_RAW_PICK(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

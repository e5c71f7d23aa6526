/* Counts a process's memory allocations and prints the number at its end. For LD_PRELOAD. */
#include <stddef.h>
#include <stdio.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static unsigned long asked;

static void count(void) { __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED); }

void *malloc(size_t size) { count(); return __libc_malloc(size); }
void *calloc(size_t many, size_t size) { count(); return __libc_calloc(many, size); }
void *realloc(void *old, size_t size) { count(); return __libc_realloc(old, size); }

__attribute__((destructor)) static void say(void) { fprintf(stderr, "allocations: %lu\n", asked); }

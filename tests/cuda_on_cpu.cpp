// Launches of kernels on a processor: every thread of a block is a fiber, blocks follow one another.
//
// A fiber runs until it waits for its warp or its block. Threads that wait for each other in vain, as those of a warp
// of which some take another way, end the launch with an error. With SANITIZED_THREADS, ThreadSanitizer is told that
// fibers run side by side, and that only what they wait for puts one after the other: all of a launch then have memory
// of their own, so that no thread is taken for another.
#include "cuda_on_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

extern "C" {
int _setjmp(void**);
void _longjmp(void**, int) __attribute__((noreturn));
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#ifdef SANITIZED_THREADS
enum { THREADS_ARE_SANITIZED = 1 };
#else
enum { THREADS_ARE_SANITIZED = 0 };
#define __tsan_get_current_fiber() 0
#define __tsan_create_fiber(flags) 0
#define __tsan_switch_to_fiber(fiber, flags)
#define __tsan_acquire(at)
#define __tsan_release(at)
#endif
#ifdef SANITIZED  // sanitizers follow swapcontext, which is slower
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

enum { STACK = 1 << 16, MOST_THREADS = THREADS_ARE_SANITIZED ? 8000 : 1024, NO_SYNC = 1 };
struct Barrier { int waiting, turn; char sides[2]; };  // threads that go on leave by one side, others arrive at the next
struct Warp { Barrier barrier; U slots[2][WARP][4]; };
struct Thread { ucontext_t context; void* jump[32]; void* fiber; char* stack; Index index; int is_started, is_done; };
struct Block { Index index; Barrier barrier; Warp* warps; Thread* threads; void* shared; };

static Thread* now;
static Block* block;
static Index dim, grid;
static ucontext_t home;
static void *home_jump[32], *home_fiber, **arguments;
static void (*kernel)(void**);
static long n_moves;  // ends of waits and of threads: a round without any is one in which nobody gets on
static char begin, end;

Index thread_index_() { return now->index; }
Index block_index_() { return block->index; }
Index block_dim_() { return dim; }
Index grid_dim_() { return grid; }
int lane_() { return now->index.x % WARP; }
void* shared_() { return block->shared; }

static void leave() {
  if (IS_SANITIZED) {
    __tsan_switch_to_fiber(home_fiber, NO_SYNC);
    swapcontext(&now->context, &home);
  } else if (!_setjmp(now->jump)) {
    _longjmp(home_jump, 1);
  }
}

static void wait_for(Barrier* barrier, int n) {
  const int turn = barrier->turn;
  __tsan_release(barrier->sides + turn % 2);
  if (++barrier->waiting == n) {
    barrier->waiting = 0;
    barrier->turn++;
    n_moves++;
  }
  while (barrier->turn == turn) leave();
  __tsan_acquire(barrier->sides + turn % 2);
}

static Warp* warp() { return block->warps + now->index.x / WARP; }
void __syncwarp() { wait_for(&warp()->barrier, WARP); }
void __syncthreads() { wait_for(&block->barrier, dim.x); }

Words* beside_(const U* own) {
  Warp* const mine = warp();
  Words* const all = mine->slots[mine->barrier.turn & 1];
  memcpy(all[lane_()], own, sizeof *all);
  __syncwarp();
  return all;
}

static void follow() {
  for (;;) {
    __tsan_acquire(&begin);
    kernel(arguments);
    __tsan_release(&end);
    now->is_done = 1;
    n_moves++;
    leave();
  }
}

static void enter() {
  if (IS_SANITIZED) {
    __tsan_switch_to_fiber(now->fiber, NO_SYNC);
    swapcontext(&home, &now->context);
  } else if (!_setjmp(home_jump)) {
    if (now->is_started) _longjmp(now->jump, 1);
    now->is_started = 1;
    setcontext(&now->context);
  }
}

// lets a fiber be the thread k of a block; those of earlier launches serve again
static void begin_thread(Thread* one, unsigned k) {
  if (!one->stack) {
    one->stack = (char*)malloc(STACK);
    one->fiber = __tsan_create_fiber(0);
    getcontext(&one->context);
    one->context.uc_stack.ss_sp = one->stack;
    one->context.uc_stack.ss_size = STACK;
    makecontext(&one->context, follow, 0);
  }
  one->index = {k, 0, 0};
  one->is_done = 0;
}

// runs all threads of a block in turns, and returns how many wait for each other in vain
static int run(Block* one) {
  int left = dim.x;
  block = one;
  while (left) {
    const long before = n_moves;
    left = 0;
    for (unsigned k = 0; k < dim.x; k++) {
      now = one->threads + k;
      if (!now->is_done) enter();
      left += !now->is_done;
    }
    if (n_moves == before) break;
  }
  return left;
}

static void end_block(Block* one) {
  free(one->warps);
  free(one->shared);
}

extern "C" int launch(void (*given)(void**), const unsigned* blocks, unsigned n, unsigned long size, void** values) {
  static Thread threads[MOST_THREADS];
  const unsigned n_blocks = blocks[0] * blocks[1] * blocks[2];
  int left = 0;
  if (n > MOST_THREADS || THREADS_ARE_SANITIZED && n * n_blocks > MOST_THREADS) return n * n_blocks;
  grid = {blocks[0], blocks[1], blocks[2]};
  dim = {n, 1, 1};
  arguments = values;
  kernel = given;
  home_fiber = __tsan_get_current_fiber();
  Block* const all = (Block*)calloc(n_blocks, sizeof(Block));
  for (unsigned i = 0; i < n_blocks && !left; i++) {
    Block* const one = all + i;
    one->index = {i % blocks[0], i / blocks[0] % blocks[1], i / blocks[0] / blocks[1]};
    one->warps = (Warp*)calloc(n / WARP, sizeof(Warp));
    one->shared = malloc(size);
    memset(one->shared, 0xa5, size);  // shared memory begins with anything
    one->threads = threads + (THREADS_ARE_SANITIZED ? i * n : 0);
    for (unsigned k = 0; k < n; k++) begin_thread(one->threads + k, k);
    __tsan_release(&begin);
    left = run(one);
    if (!THREADS_ARE_SANITIZED) end_block(one);
  }
  __tsan_acquire(&end);
  for (unsigned i = 0; THREADS_ARE_SANITIZED && i < n_blocks; i++) end_block(all + i);
  free(all);
  return left;
}
